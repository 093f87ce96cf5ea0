"""Threads that communicate: calls do not mix, and an order that differs between processes is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.launching import Ended, Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).with_name("threads.py"))


def run(how: str) -> list[Ended]:
    with Processes([PROGRAM, how], 2) as started:
        return started.wait(200)


@pytest.mark.parametrize("how", ["in_turns", "overlapping"])
def test_calls_of_several_threads_do_not_mix(how: str) -> None:
    for each in run(how):
        assert (each.status, each.out) == (0, "done\n"), each.err


def test_another_order_in_another_process_is_told() -> None:
    for each in run("another_order"):
        assert "MismatchError" in each.out, each.out + each.err
        assert "all_gather of float32[4, 4]" in each.out
        assert "ppermute by (1, 0) of float32[4, 4]" in each.out
        assert "Every process has to make the same calls in the same order" in each.out
