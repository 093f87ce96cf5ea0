"""Processes choose the same, and compute what one device computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

PROGRAM = Path(__file__).with_name("chosen_in_processes.py")


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_two_processes_choose_and_compute_alike() -> None:
    with Processes([str(PROGRAM)], 2) as processes:
        ended = processes.wait(200)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
    assert ended[0].out == ended[1].out
