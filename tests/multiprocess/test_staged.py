"""Staged plans between processes: they run through the hosts, and give what plain torch gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("staged.py"))


def test_staged_plans_give_what_plain_torch_gives() -> None:
    with Processes([PROGRAM, "0", "300"], 4) as started:
        ended = started.wait(200)
    assert [(each.status, each.out) for each in ended] == [(0, "all equal\n")] * 4, ended[0].err
