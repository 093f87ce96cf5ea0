"""Programs made at random do what plain torch does, in both memories and in two processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft
from tests.fuzz import processes
from tests.fuzz.checking import check, check_all
from tests.fuzz.generator import make
from tests.fuzz.known import KNOWN
from tests.fuzz.other_numbers import with_other_numbers
from tests.fuzz.program import Program
from tests.fuzz.shrinking import shrunk
from tests.multiprocess.launching import Processes
from weft.runtime import machine


@pytest.fixture(autouse=True)
def _one_memory_again() -> Iterator[None]:
    yield
    machine.use_separate_memory(False)


def test_programs_do_what_plain_torch_does() -> None:
    checked = list(check_all([make(seed) for seed in range(25)]))
    assert {each.form for each in checked} == {"apart", "one"}
    found = [f"{each.form}, {each.finding}" for each in checked if each.finding]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
@pytest.mark.parametrize("what", KNOWN)
def test_what_once_went_wrong(what: str, apart: bool) -> None:
    assert check(KNOWN[what], apart=apart) is None


@pytest.mark.multiprocess
def test_processes_do_what_plain_torch_does() -> None:
    text, findings = processes.hunt(2, 0, 1)
    assert not findings, text
    assert "op checks" in text


@pytest.mark.multiprocess
def test_what_once_went_wrong_in_processes() -> None:
    with Processes([processes.__file__, "known"], processes.COUNT) as started:
        for ended in started.wait(120):
            assert ended.status == 0, ended.err[-3000:]
            assert ended.out.strip() == f"{len(KNOWN)} programs"


def test_a_program_is_the_same_in_every_run() -> None:
    assert make(7) == make(7)
    assert make(7) != make(8)


def test_a_fault_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relu that forgets its sign is found among other statements, and is what is left of them."""
    plain = torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: x.abs() if isinstance(x, weft.Tensor) else plain(x))
    lines = (
        *make(3).lines[:6],
        "v90 = fresh((3, 4), 'float64', 5, 9)",
        "v91 = v90 + 1",
        "v92 = torch.relu(v91)",
        "v93 = v92 * 2",
    )
    program = Program({"a": 2, "b": 2}, lines)
    assert (found := check(program, apart=True)) is not None
    assert found.kind == "value"

    def fails(smaller: Program) -> bool:
        again = check(smaller, apart=True)
        return again is not None and again.kind == "value"

    smallest = shrunk(program, fails)
    assert len(smallest.lines) == 2
    assert "relu" in smallest.lines[-1]


def test_a_number_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is filled with the number of an earlier call is found by running the program with other numbers."""
    plain, kept = torch.full_like, {}
    monkeypatch.setattr(
        torch,
        "full_like",
        lambda x, number: plain(x, kept.setdefault(x.shape, number) if isinstance(x, weft.Tensor) else number),
    )
    program = Program({"x": 2}, ("v0 = fresh((3,), 'float64', 5, 9)", "v1 = torch.full_like(v0, 0.25)"))
    assert (found := check(program, apart=True)) is not None
    assert found.kind == "value, other numbers"


def test_other_numbers_are_other_ones() -> None:
    program = Program({"x": 2}, ("v0 = fresh((2,), 'float64', 5, 68)", "v1 = v0.renorm(2, 0, 1.5) * -0.25"))
    assert with_other_numbers(program).lines == (
        "v0 = fresh((2,), 'float64', 8, 68)",
        "v1 = v0.renorm(2, 0, 2.0) * -0.375",
    )
