"""What one process alone fails at, with a part of its own, all processes raise, and go on together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).with_name("own_parts.py"))


@pytest.mark.parametrize(("count", "apart"), [(1, "1"), (1, "0"), (2, "0"), (3, "0")])
def test_what_one_process_fails_at_all_raise(count: int, apart: str) -> None:
    with Processes([PROGRAM], count, {"WEFT_SEPARATE_MEMORY": apart}) as started:
        ended = started.wait(120)
    assert [each.status for each in ended] == [0] * count, "\n".join(each.err for each in ended)
    assert [each.out for each in ended] == ["done\n"] * count
