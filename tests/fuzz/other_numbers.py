"""The same program with other numbers: what is kept of its calls must not be the numbers that they were made with."""

from __future__ import annotations

import re
from dataclasses import replace

from .program import Program

_FLOAT = re.compile(r"(?<![\w.])(-?)(\d+\.\d+)\b")
_FRESH = re.compile(r"(fresh\(\([^)]*\), '\w+', )(\d+)")


def with_other_numbers(program: Program) -> Program:
    """The program with other values in its tensors, in the same layouts, and other floats next to them."""
    return replace(program, lines=tuple(_otherwise(line) for line in program.lines))


def _otherwise(line: str) -> str:
    # Seeds three apart draw numbers of one kind: short ones, or long ones.
    line = _FRESH.sub(lambda found: f"{found[1]}{int(found[2]) + 3}", line)
    return _FLOAT.sub(lambda found: f"{found[1]}{_other(float(found[2]))}", line)


def _other(number: float) -> float:
    """A number on the same side of 1, as probabilities and shares have to be."""
    return number / 2 + 0.25 if 0 < number < 1 and number != 0.5 else 0.375 if number == 0.5 else number + 0.5
