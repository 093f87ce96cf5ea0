"""What each device of a group holds, reduced over the group: torch ops on the whole tensor, then a movement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..caches import cached
from ..engine.memory import held_whole
from ..engine.moves.movement import is_recorded, move
from ..engine.moves.telling import note_steps
from ..engine.sharded import wrap_whole
from ..runtime.memory.lazy_copy import lazy_clone
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from ..watch import comm_log
from .tensor import Tensor

__all__ = ["check_equal_parts", "combined", "without_axes"]


def combined(
    x: torch.Tensor, layout: Layout, kind: ReduceOp, axes: tuple[str, ...], target: Layout, op: str
) -> torch.Tensor:
    """What each device of a group holds, reduced over the group, in the layout asked for."""
    whole = held_whole(x) if type(x) is Tensor and not is_recorded(x) else None
    if whole is not None:
        # The whole value is at hand and nothing is differentiated: the same torch ops, once, on it.
        y = _contributions(whole, layout, kind, axes, op)
        if comm_log.is_logging():
            # Of replicas, each device has the result.
            left = [axis for axis in axes if axis not in layout.replicated_axes]
            begun = without_axes(layout, axes).with_pending(dict.fromkeys(left, kind))
            note_steps(begun, target, tuple(y.shape), y.dtype, op, implicit=False)
        return wrap_whole(lazy_clone(y) if y is whole else y, target)
    return move(_contributions(x, layout, kind, axes, op), target, op=op)


@dataclass(frozen=True, slots=True)
class _Unfolded:
    """One dim of a tensor, with each axis that splits it as a dim of its own, some of which are combined."""

    shape: tuple[int, ...]
    combined: tuple[int, ...]
    """These dims, the last one first."""
    merged: tuple[int, int] | None
    """From which to which dim what is left is one again."""


@dataclass(frozen=True, slots=True)
class _Combination:
    """What is computed on the whole tensor before anything is reduced between devices."""

    unfolded: tuple[_Unfolded, ...]
    again: int
    """How many replicas count as contributions."""


def _contributions(x: torch.Tensor, layout: Layout, kind: ReduceOp, axes: tuple[str, ...], op: str) -> torch.Tensor:
    """What is left to reduce over `axes`, as a tensor that holds it pending."""
    how = _combination(layout, kind, axes, tuple(x.shape), op)
    is_power = kind is ReduceOp.PROD and how.again > 1
    if is_power:
        x = _repeated(x, how.again, kind)  # that of a product which is pending would need it first
    for each in how.unfolded:
        x = x.view(each.shape)
        for dim in each.combined:
            x = _COMBINE[kind](x, dim)
        if each.merged is not None:
            x = x.flatten(*each.merged)
    return x if is_power or how.again == 1 else _repeated(x, how.again, kind)


@cached(4096, of_sizes=True)
def _combination(
    layout: Layout, kind: ReduceOp, axes: tuple[str, ...], shape: tuple[int, ...], op: str
) -> _Combination:
    # Axes that hold just this reduction are only resolved; others would combine what is not a value yet.
    only_resolved = all((axis, kind) in layout.pending for axis in axes)
    for axis, waiting in layout.pending:
        if waiting is not kind and not only_resolved:
            raise ValueError(
                f"{op} was asked for the {kind}, but a {waiting} is pending over mesh axis {axis!r}: reduce that first with reduce_op='{waiting}'"
            )
    dims = sorted({layout.dim_of[axis] for axis in axes if axis in layout.dim_of}, reverse=True)
    check_equal_parts(shape, layout, reversed(dims), op)
    unfolded = []
    for dim in dims:
        each, shape = _unfolded(shape, layout, dim, axes)
        unfolded.append(each)
    again = layout.mesh.group_size(a for a in axes if a in layout.replicated_axes)
    return _Combination(tuple(unfolded), again)


def _unfolded(
    shape: tuple[int, ...], layout: Layout, dim: int, axes: tuple[str, ...]
) -> tuple[_Unfolded, tuple[int, ...]]:
    """How one dim is combined over those of `axes` that split it, and the shape afterwards."""
    names = layout.splits[dim]
    sizes = [layout.mesh.axis_size(axis) for axis in names]
    local = shape[dim] // math.prod(sizes)
    combined = tuple(dim + at for at in reversed(range(len(names))) if names[at] in axes)
    left = [size for axis, size in zip(names, sizes, strict=True) if axis not in axes]
    before, after = shape[:dim], shape[dim + 1 :]
    merged = (dim, dim + len(left)) if left else None
    unfolded = _Unfolded((*before, *sizes, local, *after), combined, merged)
    return unfolded, (*before, math.prod(left) * local, *after)


def check_equal_parts(shape: Sequence[int], layout: Layout, dims: Iterable[int], op: str) -> None:
    """Raises unless every device holds as much of these dims as the others."""
    for dim in dims:
        count = layout.split_count(dim)
        size = shape[dim]
        if size % count:
            axes = ", ".join(map(repr, layout.splits[dim]))
            sizes = [size // count + (i < size % count) for i in range(count)]
            shown = ", ".join(map(str, sizes[:8])) + (", …" if count > 8 else "")
            raise ValueError(
                f"{op} needs equal local shapes, but dim {dim} (size {size}) over mesh axis {axes} (size {count}) gives {shown}.\n"
                f"  Reduce along another axis, or pad dim {dim} to {-(-size // count) * count}."
            )


_COMBINE = {
    ReduceOp.SUM: lambda x, dim: x.sum(dim, dtype=x.dtype) if x.dtype is not torch.bool else x.any(dim),
    ReduceOp.AVG: lambda x, dim: x.mean(dim),
    ReduceOp.MAX: lambda x, dim: x.amax(dim) if x.dtype is not torch.bool else x.any(dim),
    ReduceOp.MIN: lambda x, dim: x.amin(dim) if x.dtype is not torch.bool else x.all(dim),
    ReduceOp.PROD: lambda x, dim: x.prod(dim, dtype=x.dtype) if x.dtype is not torch.bool else x.all(dim),
}


def _repeated(x: torch.Tensor, count: int, kind: ReduceOp) -> torch.Tensor:
    """The reduction of `count` copies of one value."""
    if kind is ReduceOp.SUM and x.dtype is not torch.bool:
        return x * count
    if kind is ReduceOp.PROD and x.dtype is not torch.bool:
        return x**count
    return x


@cached(4096)
def without_axes(layout: Layout, axes: tuple[str, ...]) -> Layout:
    """The layout with these axes replicated."""
    splits = [tuple(a for a in names if a not in axes) for names in layout.splits]
    return Layout(layout.mesh, splits, [(axis, op) for axis, op in layout.pending if axis not in axes])
