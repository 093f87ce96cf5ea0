"""What each device of a group holds, reduced over the group: torch ops on the whole tensor, then a movement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ..caches import BoundedCache, cached
from ..engine.form import Form
from ..engine.memory import held_whole
from ..engine.moves.movement import is_recorded, move, moved
from ..engine.moves.telling import note_steps
from ..engine.sharded import as_sharded, tensor_of, wrap_whole
from ..runtime.machine import forget_with_residences
from ..runtime.memory.lazy_copy import lazy_clone
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from ..watch import comm_log
from .tensor import Tensor

__all__ = ["GroupReduction", "check_equal_parts", "combined", "reduction", "without_axes"]


@dataclass(frozen=True, slots=True)
class _Unfolded:
    """One dim of a tensor, with each axis that splits it as a dim of its own, some of which are combined."""

    shape: tuple[int, ...]
    combined: tuple[int, ...]
    """These dims, the last one first."""
    merged: tuple[int, int] | None
    """From which to which dim what is left is one again."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupReduction:
    """What a call asks of tensors of one layout, shape and dtype: the reduction of what each device of a group holds."""

    op: str
    kind: ReduceOp
    begun: Layout
    """The layout of what is computed on the whole tensor, before anything is reduced between devices."""
    target: Layout
    unfolded: tuple[_Unfolded, ...]
    again: int
    """How many replicas count as contributions."""


def reduction(
    x: torch.Tensor,
    layout: Layout,
    op: str,
    reduce_op: str | ReduceOp,
    reduce_axes: str | Iterable[str] | None,
    dim: int | None = None,
) -> GroupReduction:
    """What a call asks of a tensor that lies so; `dim` is the one that the result is split along."""
    axes = (reduce_axes,) if isinstance(reduce_axes, str) else None if reduce_axes is None else tuple(reduce_axes)
    if type(x) is Tensor and not x._form.is_open:
        with suppress(TypeError):  # what has no hash is no reduction, which is said below
            return _reduction_of(x._form, op, reduce_op, axes, dim)
    return _reduction(layout, tuple(x.shape), x.dtype, op, reduce_op, axes, dim)


@cached(4096, cleared_by=forget_with_residences)
def _reduction_of(
    form: Form, op: str, reduce_op: str | ReduceOp, axes: tuple[str, ...] | None, dim: int | None
) -> GroupReduction:
    return _reduction(form.layout, form.shape, form.dtype, op, reduce_op, axes, dim)


@cached(4096, of_sizes=True)
def _reduction(
    layout: Layout,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    op: str,
    reduce_op: str | ReduceOp,
    named: tuple[str, ...] | None,
    dim: int | None,
) -> GroupReduction:
    kind = _kind(reduce_op, dtype, op)
    axes = _axes(layout, named, dim)
    if dim is not None and not axes:
        raise ValueError(
            f"{op} found no axes to reduce over: the layout {layout} on {layout.mesh} leaves none. Name them: reduce_axes=..."
        )
    unfolded, again = _combination(layout, kind, axes, shape, op)
    reduced = without_axes(layout, axes)
    # Of replicas, each device has the result.
    begun = reduced.with_pending(dict.fromkeys((axis for axis in axes if axis not in layout.replicated_axes), kind))
    target = reduced if dim is None else reduced.with_split(dim, (*reduced.splits[dim], *axes))
    return GroupReduction(op, kind, begun, target, unfolded, again)


def _kind(reduce_op: str | ReduceOp, dtype: torch.dtype, op: str) -> ReduceOp:
    kind = ReduceOp.of(reduce_op)
    if kind is ReduceOp.AVG and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"{op} cannot take the mean of {dtype} values: convert to a floating dtype first, or use 'sum'")
    if kind in (ReduceOp.MAX, ReduceOp.MIN) and dtype.is_complex:
        raise TypeError(f"{op} cannot take the {kind} of {dtype} values: complex numbers have no order")
    return kind


def _axes(layout: Layout, named: tuple[str, ...] | None, dim: int | None) -> tuple[str, ...]:
    """The axes to reduce over, in mesh order; if none are named, those with something pending, else what the call says."""
    mesh = layout.mesh
    if named is None:
        if dim is None:
            named = layout.pending_axes or layout.split_axes or mesh.axis_names
        else:
            named = layout.pending_axes or layout.splits[dim] or layout.replicated_axes
    for name in named:
        mesh.axis_index(name)
    return tuple(axis for axis in mesh.axis_names if axis in named)


def combined(x: torch.Tensor, how: GroupReduction) -> torch.Tensor:
    """What each device of a group holds, reduced over the group."""
    if type(x) is not Tensor or is_recorded(x):
        return move(_contributions(x, how), how.target, op=how.op)
    whole = held_whole(x)
    if whole is None:
        return moved(as_sharded(_contributions(x, how)), how.target, how.op)
    # The whole value is at hand and nothing is differentiated: the same torch ops, once, on it.
    y = _contributions(whole, how)
    if comm_log.is_logging():
        note_steps(how.begun, how.target, tuple(y.shape), y.dtype, how.op, implicit=False)
    if y is whole:
        y = lazy_clone(y)
    form = _forms.get((x._form, how))
    if form is not None and form.strides == y.stride():
        return tensor_of(form, (y,))
    there = wrap_whole(y, how.target)
    if not y.storage_offset() and not there._form.is_open:
        _forms[x._form, how] = there._form
    return there


_forms = BoundedCache[tuple[Form, GroupReduction], Form](4096, cleared_by=forget_with_residences)
"""Of tensors in one memory, the form of what they were reduced to."""


def _contributions(x: torch.Tensor, how: GroupReduction) -> torch.Tensor:
    """What is left to reduce between devices, as a tensor that holds it pending."""
    is_power = how.kind is ReduceOp.PROD and how.again > 1
    if is_power:
        x = _repeated(x, how.again, how.kind)  # that of a product which is pending would need it first
    for each in how.unfolded:
        x = x.view(each.shape)
        for dim in each.combined:
            x = _COMBINE[how.kind](x, dim)
        if each.merged is not None:
            x = x.flatten(*each.merged)
    return x if is_power or how.again == 1 else _repeated(x, how.again, how.kind)


def _combination(
    layout: Layout, kind: ReduceOp, axes: tuple[str, ...], shape: tuple[int, ...], op: str
) -> tuple[tuple[_Unfolded, ...], int]:
    """What is computed on the whole tensor, and how many replicas count as contributions."""
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
    return tuple(unfolded), again


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
