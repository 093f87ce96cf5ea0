"""A process that dies, stalls or does something else makes the others raise in time, with an error that names it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.multiprocess.launching import Ended, Processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(600)]

PROGRAM = str(Path(__file__).with_name("faulty.py"))
LARGE = 8192  # rows: messages that go straight from process to process
TIMEOUT = 5.0
GRACE = 15.0
"""Seconds that a slow machine may need on top, to start threads and write errors."""


@dataclass(frozen=True)
class Scenario:
    """What one process does, during what."""

    how: str
    what: str
    rows: int = 4
    count: int = 3
    known: bool = True
    checked: bool = False

    def run(self) -> list[Ended]:
        extra = {
            "FAULTY_TIMEOUT": str(TIMEOUT),
            "FAULTY_KNOWN": str(int(self.known)),
            "WEFT_CHECK": str(int(self.checked)),
        }
        with Processes([PROGRAM, self.how, self.what, str(self.rows)], self.count, extra) as started:
            return started.wait(TIMEOUT + 120, but=[1] if self.how == "stop" else [])


LOST = {
    Scenario("kill", "all_gather"): "process 1 shows no sign of life",
    Scenario("kill", "all_reduce", LARGE): "process 1 shows no sign of life",
    Scenario("stop", "all_to_all", LARGE): "process 1 shows no sign of life",
    Scenario("raise", "reduce_scatter"): "process 1 has failed: ValueError: there is no data",
    Scenario("leave", "item"): "process 1 has left",
}
DIFFERENT = [Scenario("other", "all_gather", rows, 2, known) for rows in (4, LARGE) for known in (False, True)]
REFUSED = Scenario("index", "all_gather")
CHECKED = Scenario("other", "all_gather", LARGE, 2, checked=True)
SLOW = Scenario("slow", "all_gather", LARGE)
TOO_SLOW = Scenario("sleep", "all_gather")

Outcomes = dict[Scenario, Future[list[Ended]]]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """All of them, three at a time: they mostly wait."""
    with ThreadPoolExecutor(3) as pool:
        scenarios = [*LOST, *DIFFERENT, CHECKED, REFUSED, SLOW, TOO_SLOW]
        yield {scenario: pool.submit(scenario.run) for scenario in scenarios}


def said(ended: Ended) -> str:
    """What a process printed when it noticed."""
    return ended.out.split("after", 1)[-1]


def noticed(ended: Ended) -> float:
    """After how many seconds in a call a process raised."""
    assert ended.status == 3, (ended.status, ended.out, ended.err)
    return float(said(ended).split()[0])


@pytest.mark.parametrize("scenario", LOST, ids=lambda each: f"{each.how} {each.what}")
def test_survivors_raise_in_time_and_name_the_process(scenario: Scenario, outcomes: Outcomes) -> None:
    first, second, third = outcomes[scenario].result()
    assert second.status != 3
    for survivor in (first, third):
        assert noticed(survivor) < TIMEOUT + GRACE
        text = said(survivor)
        assert "TimeoutError" in text
        assert LOST[scenario] in text
        assert "float32[" in text  # dtype and shape
        assert "called at " in text
        assert "faulty.py:" in text
        assert "on a=3 (cpu:0 to cpu:2)" in text


def test_what_one_process_refuses_ends_all(outcomes: Outcomes) -> None:
    for ended in outcomes[REFUSED].result():
        assert ended.status == 1
        assert "IndexError: index 99 is out of bounds for dimension 0 with size 4" in ended.err
    assert "process 1 has refused it, at " in outcomes[REFUSED].result()[0].err
    assert "faulty.py:" in outcomes[REFUSED].result()[2].err


def test_a_slow_process_is_waited_for(outcomes: Outcomes) -> None:
    assert [(each.status, "done" in each.out) for each in outcomes[SLOW].result()] == [(0, True)] * 3


def test_a_process_that_is_too_slow_is_named_and_so_is_its_last_call(outcomes: Outcomes) -> None:
    first, second, _ = outcomes[TOO_SLOW].result()
    assert "process 1 is alive, but has not come here" in said(first)
    assert "Its last call was " in said(first)
    assert "weft.distributed.init(timeout=...)" in said(first)
    assert second.status == 3


@pytest.mark.parametrize("scenario", DIFFERENT, ids=lambda each: f"{each.rows} {'known' if each.known else 'new'}")
def test_different_calls_are_shown_side_by_side(scenario: Scenario, outcomes: Outcomes) -> None:
    """New calls are compared before they are made; known ones are told apart when they meet, or in time."""
    for each in outcomes[scenario].result():
        assert noticed(each) < TIMEOUT + GRACE
        assert "MismatchError" in said(each)
        assert "all_gather of float32[" in said(each)
        assert "ppermute by " in said(each)
        assert "Every process has to make the same calls in the same order" in said(each)


def test_checking_every_call_finds_a_difference_at_once(outcomes: Outcomes) -> None:
    for each in outcomes[CHECKED].result():
        noticed(each)
        assert "processes make different calls:\n  process " in said(each)


def test_who_waits_where_processes_meet_for_the_first_time_hears_that_one_has_failed() -> None:
    with Processes([str(Path(__file__).with_name("parting.py"))], 2) as started:
        ended = started.wait(60)
    assert [each.status for each in ended] == [1, 1], ended
    left, alone = sorted(ended, key=lambda each: "MismatchError" not in each.err)
    assert "processes bring different tensors to shard" in left.err
    assert "TimeoutError" in alone.err
    assert "has failed: it brought another tensor than process" in alone.err


def test_who_waits_hears_of_one_that_failed_before_it_communicated() -> None:
    """It had left no sign of life yet, so that others waited for the timeout, and took it for dead."""
    with Processes([str(Path(__file__).with_name("parting.py")), "by itself"], 2) as started:
        alone, failed = started.wait(60)
    assert (alone.status, failed.status) == (1, 1), (alone, failed)
    assert "process 1 has failed: ValueError: no such sample" in alone.err


def test_who_waits_hears_of_one_whose_program_ended_before_it_communicated() -> None:
    with Processes([str(Path(__file__).with_name("parting.py")), "early"], 2) as started:
        alone, ended = started.wait(60)
    assert (alone.status, ended.status) == (1, 0), (alone, ended)
    assert "process 1 has left: its program has ended" in alone.err
    assert (
        "If it ended well, this call is one that it does not make. Every process has to make the same calls"
        in alone.err
    )
    assert "take them out of what some processes do alone, as in `if weft.on_main():`" in alone.err


@pytest.mark.parametrize("size", [4, 40000])
def test_who_waits_hears_of_the_first_process_whose_program_ended_a_step_before(size: int) -> None:
    """It keeps the store until the others have left, too, and with that its connections: who waited did so for the timeout."""
    with Processes([str(Path(__file__).with_name("parting.py")), "the first", str(size)], 2) as started:
        first, alone = started.wait(60)
    assert (first.status, alone.status) == (0, 1), (first, alone)
    assert "process 0 has left: its program has ended" in alone.err


def test_the_first_process_waits_for_those_that_communicate_without_it() -> None:
    """It keeps the store, by which they find each other."""
    with Processes([str(Path(__file__).with_name("parting.py")), "without the first"], 3) as started:
        ended = started.wait(60)
    assert [(each.status, each.out) for each in ended] == [(0, "\n"), *[(0, "[0.0, 2.0, 4.0, 6.0]\n")] * 2], ended


def test_control_c_ends_a_process_that_waits(outcomes: Outcomes) -> None:
    with Processes([PROGRAM, "interrupt", "all_gather", str(LARGE)], 2, {"FAULTY_TIMEOUT": "600"}) as started:
        waiting, other = started.running
        until = time.monotonic() + 60
        while "ready" not in waiting.out and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.7)
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(30) in (1, -signal.SIGINT, 130)
        assert "KeyboardInterrupt" in waiting.err
        other.send_signal(signal.SIGINT)
        assert other.wait(30) is not None
