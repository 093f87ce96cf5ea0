"""Processes that a process of a launch starts: they compute, leave the others alone, and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("children.py"))


def test_children_work_and_end() -> None:
    with Processes([PROGRAM], 2) as started:
        first, second = started.wait(250)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.out == second.out == "done\n"
