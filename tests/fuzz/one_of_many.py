"""Results that are one element of many: torch has one formula for their gradient on a CPU, and one for classes of tensors.

Where the gradient is infinite, that of the other elements is 0 in the first, and not a number in the second, which CUDA has too.
So it is with products in which two factors are zero.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from .program import Program
from .words import Namespace

_ONE_OF_MANY = re.compile(r"\b(v\d+(?:\[\d+\])*)\.(median|nanmedian|max|min)\(\)")

_PRODUCT = re.compile(r"\b(v\d+(?:\[\d+\])*)\.prod\(\)")


def as_in_classes(program: Program) -> Program | None:
    """The program with such results differentiated by the formula for classes; None: it has none."""
    lines = tuple(_ONE_OF_MANY.sub(r"one_of_many(\1, '\2')", line) for line in program.lines)
    lines = tuple(_PRODUCT.sub(r"product(\1)", line) for line in lines)
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


class _Product(torch.autograd.Function):
    """The product of numbers."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.prod()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if len(x) < 2:
            return grad.expand(x.shape)
        one = torch.ones_like(x[:1])
        before, after = (torch.cat([one, part]).cumprod(0) for part in (x[:-1], x[1:].flip(0)))
        return grad * (before * after.flip(0)).conj()


def _product(x: torch.Tensor) -> torch.Tensor:
    if x.dtype not in (torch.float64, torch.complex128):
        return x.prod()
    return _Product.apply(x.reshape(-1))  # type: ignore[no-any-return, no-untyped-call]


def words() -> Namespace:
    """What the formulas are called in a program."""
    return {"one_of_many": _OneOfMany.apply, "product": _product}
