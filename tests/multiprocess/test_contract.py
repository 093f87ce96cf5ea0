"""One contract for all runtimes: what a program yields does not depend on how many processes run it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

import weft
from tests.multiprocess.programs import PROGRAMS
from tests.multiprocess.record import Record
from tests.multiprocess.run_contract import Found, expected_of, run, wrong
from weft.runtime import machine

NAMES = list(PROGRAMS)
LAUNCHES = {
    "1 process": (1, 1),
    "2 processes": (2, 1),
    "3 processes": (3, 1),
    "4 processes": (4, 1),
    "2 processes of 2 devices": (2, 2),
}


@cache
def expected(name: str, count: int) -> dict[str, Record]:
    return expected_of(name, [weft.CPU(i) for i in range(count)])


@cache
def found(launch: str) -> list[Found]:
    processes, devices = LAUNCHES[launch]
    return run(NAMES, processes, devices)


@pytest.fixture
def separate_memory() -> Iterator[None]:
    machine.use_separate_memory(True)
    yield
    machine.use_separate_memory(False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_separate_memories_give_what_one_gives(name: str, count: int, separate_memory: None) -> None:
    devices = [weft.CPU(i) for i in range(count)]
    assert wrong(name, [{name: expected_of(name, devices)}], _in_one_memory(name, count)) == []


def _in_one_memory(name: str, count: int) -> dict[str, Record]:
    machine.use_separate_memory(False)
    return expected(name, count)


@pytest.mark.multiprocess
@pytest.mark.timeout(700)
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("name", NAMES)
def test_processes_give_what_one_gives(launch: str, name: str) -> None:
    processes, devices = LAUNCHES[launch]
    assert wrong(name, found(launch), expected(name, processes * devices)) == []


@pytest.mark.multiprocess
@pytest.mark.timeout(700)
def test_several_contributions_of_one_process_travel_together() -> None:
    name = "contributions_of_one_process"
    assert wrong(name, run([name], 2, 4), expected(name, 8)) == []


def test_a_difference_is_seen() -> None:
    found, expected = expected_of("exchanges", [weft.CPU(0)]), expected_of("exchanges", [weft.CPU(0)])
    assert wrong("exchanges", [{"exchanges": found}], expected) == []
    found["uneven"]["parts"] = expected["tiled 1 0"]["parts"]
    assert wrong("exchanges", [{"exchanges": found}], expected) != []
    assert wrong("exchanges", [{"exchanges": "it failed"}], expected) == ["process 0: it failed"]
