"""Results that are one element of many: torch has one formula for their gradient on a CPU, and one for classes of tensors.

Where the gradient is infinite, that of the other elements is 0 in the first, and not a number in the second, which CUDA has too.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from .program import Program
from .words import Namespace

_ONE_OF_MANY = re.compile(r"\b(v\d+(?:\[\d+\])*)\.(median|nanmedian|max|min)\(\)")


def as_in_classes(program: Program) -> Program | None:
    """The program with such results differentiated by the formula for classes; None: it has none."""
    lines = tuple(_ONE_OF_MANY.sub(r"one_of_many(\1, '\2')", line) for line in program.lines)
    return None if lines == program.lines else replace(program, lines=lines)


class _OneOfMany(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, op: str) -> torch.Tensor:
        value: torch.Tensor = getattr(x, op)()
        ctx.save_for_backward(x, value)
        return value

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        x, value = ctx.saved_tensors  # type: ignore[attr-defined]
        mask = (x == value) | (x.isnan() & value.isnan())
        return mask * (grad / mask.sum()), None


def words() -> Namespace:
    """What the formula is called in a program."""
    return {"one_of_many": _OneOfMany.apply}
