"""Processes join by themselves or when asked to, agree on random numbers, and leave in any way they like."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("joining.py"))


@pytest.mark.parametrize("how", ["by itself", "never", "twice", "own group"])
def test_processes_that_join_agree_and_leave_cleanly(how: str) -> None:
    """They seeded differently before; afterwards all draw what the first one would have."""
    with Processes([PROGRAM, how], 2) as started:
        first, second = started.wait(120)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.err == second.err == ""
    assert first.out == second.out
    assert first.out.startswith("15.0 [")


def test_an_error_in_one_process_ends_all_and_is_told_to_the_others() -> None:
    with Processes([PROGRAM, "trouble"], 2) as started:
        first, second = started.wait(120)
    assert (first.status, second.status) == (1, 1)
    assert "AssertionError: something is wrong here" in second.err
    assert "process 1 has failed: AssertionError: something is wrong here" in first.err
