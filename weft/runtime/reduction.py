"""Reducing contributions: one pass per chunk, in a fixed order, in f32 for the short floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from . import accelerator_kernels

__all__ = ["Totals", "combination", "combine", "is_wide", "neutral", "reduce_into", "reduced", "summed"]

_CHUNK = 1 << 18
"""Elements a pass works on: small enough for the accumulator to stay in the cache between passes."""

Combine = Callable[..., torch.Tensor]

combine: dict[ReduceOp, Combine] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.PROD: torch.mul,
}
_SHORT_FLOATS = (torch.float16, torch.bfloat16)
_REDUCED_AS = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float8_e4m3fnuz: torch.float32,
    torch.float8_e5m2fnuz: torch.float32,
    torch.float8_e8m0fnu: torch.float32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}
"""Dtypes that torch looks elements up in but does not add, and those that have the same sums; of elements looked up, one is not zero."""
_ARITHMETIC = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD)


def neutral(op: ReduceOp, dtype: torch.dtype) -> float | int | bool:
    """What changes nothing when it is combined.

    >>> neutral(ReduceOp.MAX, torch.int8)
    -128
    """
    if op in (ReduceOp.SUM, ReduceOp.AVG):
        return 0
    if op is ReduceOp.PROD:
        return 1
    if dtype is torch.bool:
        return op is ReduceOp.MIN
    if dtype.is_floating_point:
        return float("-inf") if op is ReduceOp.MAX else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if op is ReduceOp.MAX else limits.max


def combination(source: Layout, axes: Sequence[str]) -> tuple[ReduceOp, int]:
    """How contributions along these axes are combined, and what a mean divides by; the planner has refused other mixtures."""
    pending = dict(source.pending)
    kinds = {pending[axis] for axis in axes}
    divisor = source.mesh.group_size(axis for axis in axes if pending[axis] is ReduceOp.AVG)
    return (ReduceOp.AVG if ReduceOp.AVG in kinds else kinds.pop()), divisor


def is_wide(op: ReduceOp, dtype: torch.dtype) -> bool:
    """Whether what is not all there yet is kept in f32.

    >>> is_wide(ReduceOp.SUM, torch.bfloat16), is_wide(ReduceOp.MAX, torch.bfloat16)
    (True, False)
    """
    return dtype in _SHORT_FLOATS and op in _ARITHMETIC


def summed(op: ReduceOp, dtype: torch.dtype) -> ReduceOp:
    """How some of the contributions are combined: a mean is a sum until all of it is there, but booleans have none to divide.

    >>> summed(ReduceOp.AVG, torch.float32), summed(ReduceOp.AVG, torch.bool)
    (ReduceOp.SUM, ReduceOp.AVG)
    """
    return ReduceOp.SUM if op is ReduceOp.AVG and dtype is not torch.bool else op


def reduced(op: ReduceOp, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The reduction of equal-shaped parts.

    >>> reduced(ReduceOp.SUM, [torch.ones(2), torch.ones(2)])
    tensor([2., 2.])
    """
    first = parts[0]
    return reduce_into(torch.empty(first.shape, dtype=first.dtype, device=first.device), op, parts)


def reduce_into(
    out: torch.Tensor, op: ReduceOp, parts: Sequence[torch.Tensor], divisor: int | None = None
) -> torch.Tensor:
    """Writes the reduction of equal-shaped parts to `out`; a mean divides by `divisor`, or by how many there are."""
    divisor = len(parts) if divisor is None else divisor
    if len(parts) == 1:
        return out.copy_(parts[0])
    if out.dtype is torch.bool and op in _ARITHMETIC:
        return out.copy_(_bool_reduced(op, parts))
    width = _REDUCED_AS.get(out.dtype)
    # One that is no wider has other elements below others.
    if width is not None and (op in _ARITHMETIC or width.itemsize > out.itemsize):
        wide = torch.empty(out.shape, dtype=width, device=out.device)
        return out.copy_(reduce_into(wide, op, [part.to(width) for part in parts], divisor))
    if divisor in (1, len(parts)) and accelerator_kernels.combine(out, op, parts):
        return out
    if out.numel() <= _CHUNK or out.device.type != "cpu" or not out.is_contiguous():
        _reduce_chunk(out, op, parts, divisor)
        return out
    step = max(1, _CHUNK * out.shape[0] // out.numel())
    for target, *chunk in zip(*(x.split(step) for x in (out, *parts)), strict=True):
        _reduce_chunk(target, op, chunk, divisor)
    return out


def _reduce_chunk(out: torch.Tensor, op: ReduceOp, parts: Sequence[torch.Tensor], divisor: int) -> None:
    # The sum or product of two is rounded once in any case.
    wide = is_wide(op, out.dtype) and (len(parts) > 2 or op is ReduceOp.AVG)
    first = parts[0].float() if wide else parts[0]
    together = combine[op]
    total = together(first, parts[1]) if wide else together(first, parts[1], out=out)
    if op is ReduceOp.SUM:  # the method is the quicker way to say it
        for part in parts[2:]:
            total.add_(part)
    else:
        for part in parts[2:]:
            together(total, part, out=total)
    if op is ReduceOp.AVG:
        total.div_(divisor)
    if wide:
        out.copy_(total)


def _bool_reduced(op: ReduceOp, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Sum of booleans is "any", product is "all", as in torch's own addition and multiplication."""
    result = parts[0]
    for part in parts[1:]:
        result = result | part if op is ReduceOp.SUM else result & part
    return result


@final
@dataclass(frozen=True, slots=True)
class Totals:
    """Sums that come together in several turns, and are rounded, divided and multiplied when all of one is there.

    >>> totals = Totals(ReduceOp.AVG, 3, 1, torch.bfloat16)
    >>> half = totals.added([torch.ones(2), torch.ones(2)])
    >>> totals.finished(totals.added([half, torch.ones(2)]))
    tensor([1., 1.], dtype=torch.bfloat16)
    """

    op: ReduceOp
    divisor: int
    scale: int
    dtype: torch.dtype

    @property
    def width(self) -> torch.dtype:
        """The dtype of what is not all there yet."""
        return torch.float32 if is_wide(self.op, self.dtype) else self.dtype

    def added(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The reduction of some parts."""
        wide = [part.to(self.width) for part in parts]
        return wide[0] if len(wide) == 1 else reduced(summed(self.op, self.dtype), wide)

    def finished(self, total: torch.Tensor) -> torch.Tensor:
        """The result, where a total has all its parts."""
        if self.op is ReduceOp.AVG and self.divisor > 1 and self.dtype is not torch.bool:
            total = total.clone().div_(self.divisor)
        return (total if self.scale == 1 else total * self.scale).to(self.dtype)
