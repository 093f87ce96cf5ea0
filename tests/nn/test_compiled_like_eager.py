"""Compiled programs give what they give without a compiler, lay it out alike, and move the same."""

from __future__ import annotations

import pytest

import weft
from tests.nn.compiled_programs import PROGRAMS, compare
from tests.rules.harness import memory

MESH = weft.make_mesh({"a": 2, "b": 2})


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_the_same_compiled(program: str, separate: bool) -> None:
    with memory(separate):
        compare(PROGRAMS[program], MESH)
