"""Random programs compute on sharded tensors what they compute on plain ones: views, writes, movements, gradients."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.tensor.known_programs import KNOWN, SQUARE
from tests.tensor.program_making import make_program
from tests.tensor.program_words import WeftWords
from tests.tensor.programs import Program, difference, shortened
from weft.engine.views.copy_views import is_copy

BATCH = 25


def check(program: Program) -> None:
    # The second time, calls are found in tables that the first time has filled.
    if difference(program) or difference(program):
        short = shortened(program)
        raise AssertionError(f"{difference(short) or difference(program)}\n\n{short}")


@pytest.mark.parametrize("batch", range(8))
def test_random_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(make_program(seed))


@pytest.mark.parametrize("batch", range(4))
def test_gradients_of_random_programs(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        check(make_program(seed, differentiable=True))


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    check(KNOWN[name])


def test_a_difference_is_seen() -> None:
    lines = (
        "x = given(1, (3,), float64, ['a'])",
        "y = given(2, (3,), float64, ['a'])",
        "seen(id(x) == id(x.data))",
        "seen(x)",
    )
    assert difference(Program(SQUARE, lines)) is None
    wrong = Program(SQUARE, (*lines, "x = numbers(3, (3,), float64) if hasattr(x, 'mesh') else x", "seen(x)"))
    assert "the 2. thing seen is" in str(difference(wrong))
    assert shortened(wrong).lines == (lines[0], *wrong.lines[-2:])


def test_what_moves_does_not_depend_on_other_views() -> None:
    """Views that are copies go when they are collected, about which processes do not agree."""
    words = WeftWords(SQUARE)

    def logged() -> list[str]:
        x = words.contributed(1, (4, 1), torch.float64, ["", ""], {"a": "SUM"}, "own")
        with weft.comm_log() as log:
            (x.expand(4, 6) * 2).exp()
        return [f"{record.kind} {record.shape}" for record in log.records]

    expected = logged()
    kept = words.contributed(1, (4, 4), torch.float64, ["", ""], {"b": "SUM"}, "own").as_strided((3, 2), (2, 1), 1)
    assert is_copy(kept)
    assert logged() == expected
    assert kept.shape == (3, 2)
