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
from tests.fuzz.program import Program
from tests.fuzz.shrinking import shrunk
from weft.runtime import machine


@pytest.fixture(autouse=True)
def _one_memory_again() -> Iterator[None]:
    yield
    machine.use_separate_memory(False)


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
def test_programs_do_what_plain_torch_does(apart: bool) -> None:
    found = [finding for finding, _ in check_all([make(seed) for seed in range(25)], apart=apart) if finding]
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
@pytest.mark.parametrize("what", KNOWN)
def test_what_once_went_wrong(what: str, apart: bool) -> None:
    assert check(KNOWN[what], apart=apart) is None


@pytest.mark.multiprocess
def test_processes_do_what_plain_torch_does() -> None:
    text, findings = processes.hunt(2, 0, 1)
    assert not findings, text
    assert "op checks" in text


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
