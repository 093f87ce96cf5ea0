"""What one process alone fails at, with a part of its own, all processes raise, and go on together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).with_name("own_parts.py"))
APART, TWO_EACH = {"WEFT_SEPARATE_MEMORY": "1"}, {"WEFT_DEVICES_PER_PROCESS": "2"}


@pytest.mark.parametrize(("count", "how"), [(1, APART), (1, {}), (2, TWO_EACH), (3, {})])
def test_what_one_process_fails_at_all_raise(count: int, how: Mapping[str, str]) -> None:
    with Processes([PROGRAM], count, how) as started:
        ended = started.wait(120)
    assert [each.status for each in ended] == [0] * count, "\n".join(each.err for each in ended)
    assert [each.out for each in ended] == ["done\n"] * count
