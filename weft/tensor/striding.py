"""`as_strided`: said as slices, selections and a permutation where that is what it is, else taken of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import torch

from .dispatch import handler, run_by_rule
from .tensor import Tensor

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is taken of each dim (start, step, count; count None: one index, and the dim goes), and how dims then stand."""

    parts: tuple[tuple[int, int, int | None], ...]
    order: tuple[int, ...]
    new: tuple[int, ...]
    """Where dims of size 1 are put in, in ascending order."""


@handler(aten.as_strided.default)
def _as_strided(func: Op, args: Args, kwargs: Kwargs) -> object:
    x = cast(Tensor, args[0])
    size, stride = (tuple(map(int, cast("Sequence[int]", value))) for value in args[1:3])
    given = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    base = int(x.storage_offset())
    taken = _read(tuple(x.shape), x.stride(), size, stride, (base if given is None else cast(int, given)) - base)
    if taken is None:
        return run_by_rule(func, args, kwargs)
    y: object = x
    for dim in reversed(range(x.dim())):
        start, step, count = taken.parts[dim]
        if count is None:
            y = aten.select.int(y, dim, start)
        elif (start, step, count) != (0, 1, x.shape[dim]):
            y = aten.slice.Tensor(y, dim, start, start + (count - 1) * step + 1, step)
    if taken.order != tuple(range(len(taken.order))):
        y = aten.permute.default(y, list(taken.order))
    for dim in taken.new:
        y = aten.unsqueeze.default(y, dim)
    return y if y is not x else aten.alias.default(x)


@lru_cache(maxsize=4096)
def _read(shape: Sizes, strides: Sizes, size: Sizes, stride: Sizes, offset: int) -> _Taken | None:
    """A strided view as one of indices, or None where it is not one."""
    if offset < 0 or 0 in shape or 0 in size:
        return None
    starts = _starts(shape, strides, offset)
    if starts is None:
        return None
    dim_of: dict[int, int] = {}
    parts: list[tuple[int, int, int | None]] = [(start, 1, None) for start in starts]
    for k, (count, step) in enumerate(zip(size, stride, strict=True)):
        if count == 1:
            continue
        dim = _dim(shape, strides, step, set(dim_of.values()))
        if dim is None or starts[dim] + (count - 1) * (step // strides[dim]) >= shape[dim]:
            return None
        dim_of[k] = dim
        parts[dim] = starts[dim], step // strides[dim], count
    kept = sorted(dim_of.values())
    order = tuple(kept.index(dim) for _, dim in sorted(dim_of.items()))
    return _Taken(tuple(parts), order, tuple(k for k, count in enumerate(size) if count == 1))


def _starts(shape: Sizes, strides: Sizes, offset: int) -> list[int] | None:
    """The index of the element at an offset."""
    starts = [0] * len(shape)
    for dim in sorted(range(len(shape)), key=lambda d: -strides[d]):
        if shape[dim] > 1:
            if strides[dim] == 0:
                return None
            starts[dim], offset = divmod(offset, strides[dim])
            if starts[dim] >= shape[dim]:
                return None
    return None if offset else starts


def _dim(shape: Sizes, strides: Sizes, step: int, used: set[int]) -> int | None:
    """The dim whose stride a step is a multiple of, the coarsest of them."""
    fitting = [d for d, s in enumerate(strides) if d not in used and shape[d] > 1 and s and s <= step and step % s == 0]
    return max(fitting, key=lambda d: strides[d], default=None)
