"""Slices: what is taken of a split dim stays split, and each device receives only what it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ...engine.arguments import argument, as_dim
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import alike, note_rearrangement, rearranged, resolved
from ...engine.sharded import ShardedTensor
from ...engine.views.copy_views import Told, is_observed, remember, remember_alias, remember_told
from ...engine.views.view_results import shown, tell_whole, view_geometry, write_whole
from ...engine.writes.writing import store
from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...runtime.lazy_copy import may_overlap
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


def _bounds(size: int, start: object, stop: object, step: object) -> tuple[int, int, int]:
    """The first index, the step and the number of indices of a slice, cut to the dim as torch does."""
    first, last, _ = slice(cast("int | None", start), cast("int | None", stop)).indices(size)
    stride = cast(int, step)
    return first, stride, max(0, -(-(last - first) // stride))


def _runs(shape: Sequence[int], dim: int, run: Run) -> tuple[Run, ...]:
    return tuple(run if d == dim else Run(size) for d, size in enumerate(shape))


@handler(aten.slice.Tensor, may_be_direct=True)
def _slice(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    first, step, count = _bounds(
        x.shape[dim] if x.dim() else 0, *(argument(func, args, kwargs, name) for name in ("start", "end", "step"))
    )
    if not x.dim() or step < 1 or not x._layout.splits[dim] or count == x.shape[dim]:
        return run_by_rule(call)
    return sliced(x, dim, first, step, count)


def sliced(x: ShardedTensor, dim: int, first: int, step: int, count: int) -> ShardedTensor:
    """Every `step`-th index of a dim from `first`, as a view of `x` in its layout."""
    rest: Args = (dim, first, first + count * step, step)
    shape = list(x.shape)
    shape[dim] = count
    part = Part(0, _runs(shape, dim, Run(count, source=first, source_step=step)))
    y = rearranged(
        [x],
        x._layout,
        shape,
        [part],
        str(aten.slice.Tensor),
        lambda piece: aten.slice.Tensor(piece, *rest),
        is_view=True,
    )
    unified = holding(x._layout).unified
    if unified and not is_observed():
        return remember_alias(y, x)
    told = _told(aten.slice.Tensor, x._layout, tuple(shape), part, Part(0, _placed(shape, dim, first, step)))
    if unified:
        return remember_told(y, x, told)
    y = shown(x, y, view_geometry(aten.slice.Tensor, rest, {}, x)[0])

    def put_back(base: ShardedTensor, part: ShardedTensor) -> None:
        if may_overlap(base):  # what is written may be other elements of the base too
            write_whole(aten.slice.Tensor, rest, {}, 0, base, part)
        else:
            store(base, _scattered(base, part, dim, first, step), "slice")

    return remember(y, x, lambda base: sliced(base, dim, first, step, count), put_back, told=told)


def _placed(shape: Sequence[int], dim: int, first: int, step: int) -> tuple[Run, ...]:
    """Where what was taken of a dim goes when it is put back."""
    return _runs(shape, dim, Run(shape[dim], target=first, target_step=step))


def _told(func: Op, layout: Layout, shape: tuple[int, ...], taken: Part, placed: Part) -> Told:
    """What a part of a dim moves when it is read, and when it is written back; the layout and the shape are the part's."""

    def read(base: ShardedTensor) -> None:
        plan = Rearrangement((Side.of(base._layout, base.shape),), Side.of(layout, shape), (taken,))
        note_rearrangement(plan, base.dtype.itemsize, str(func))

    def write(base: ShardedTensor, view: ShardedTensor) -> None:
        if may_overlap(base):
            return tell_whole(func, base, view)
        plan = Rearrangement((Side.of(layout, shape),), Side.of(base._layout, base.shape), (placed,))
        return note_rearrangement(plan, base.dtype.itemsize, str(aten.slice_scatter.default))

    return Told(read, write)


def _scattered(x: ShardedTensor, source: ShardedTensor, dim: int, first: int, step: int) -> ShardedTensor:
    """`x` with some indices of a dim taken from `source`, in the layout of `x`; both are pending alike."""
    count = source.shape[dim]
    runs = _runs(source.shape, dim, Run(count, target=first, target_step=step))
    rest = (dim, first, first + count * step, step)
    return rearranged(
        [source],
        x._layout,
        x.shape,
        [Part(0, runs)],
        str(aten.slice_scatter.default),
        lambda piece, part: aten.slice_scatter.default(piece, part, *rest),
        into=x,
    )


@handler(aten.select.int, may_be_direct=True)
def _select(call: BoundCall) -> object:
    args = call.args
    x = cast(ShardedTensor, args[0])
    if not x.dim():
        return run_by_rule(call)
    dim = as_dim(args[1], x.dim())
    index = int(cast(int, args[2]))
    size = x.shape[dim]
    if not x._layout.splits[dim] or not -size <= index < size:
        return run_by_rule(call)
    return _selected(x, dim, index % size)


def _selected(x: ShardedTensor, dim: int, index: int) -> ShardedTensor:
    """One index of a split dim: whoever holds it gives it to the others."""
    target = x._layout.with_split(dim, ())
    unified = holding(target).unified
    shape = list(x.shape)
    shape[dim] = 1
    part = Part(0, _runs(shape, dim, Run(1, source=index)))
    y = rearranged(
        [x],
        target,
        shape,
        [part],
        str(aten.select.int),
        lambda piece: aten.slice.Tensor(piece, dim, index, index + 1),
        is_view=True,
    )
    y = cast(ShardedTensor, aten.squeeze.dim(y, dim))
    if unified and not is_observed():
        return remember_alias(y, x)
    told = _told(aten.select.int, target, tuple(shape), part, Part(0, _placed(shape, dim, index, 1)))
    if unified:
        return remember_told(y, x, told)
    y = shown(x, y, view_geometry(aten.select.int, (dim, index), {}, x)[0])

    def put_back(base: ShardedTensor, part: ShardedTensor) -> None:
        if may_overlap(base):
            write_whole(aten.select.int, (dim, index), {}, 0, base, part)
        else:
            store(
                base, _scattered(base, cast(ShardedTensor, aten.unsqueeze.default(part, dim)), dim, index, 1), "select"
            )

    return remember(y, x, lambda base: _selected(base, dim, index), put_back, told=told)


@handler(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, may_be_direct=True)
def _split(call: BoundCall) -> object:
    """Pieces of a split dim are slices of it."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    if not x.dim() or not x._layout.splits[dim]:
        return run_by_rule(call)
    size = x.shape[dim]
    if func is aten.unbind.int:
        return [_selected(x, dim, i) for i in range(size)]
    sizes = _sizes(func, args, size)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [sliced(x, dim, start, 1, count) for start, count in zip(starts, sizes, strict=True)]


def _sizes(func: Op, args: Args, size: int) -> list[int]:
    if func is aten.split.Tensor:
        step = cast(int, args[1])
        if step < 0 or (step == 0 and size):
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
        return [min(step, size - start) for start in range(0, size, step)] if size else [0]
    sizes = [int(s) for s in cast("Sequence[int]", args[1])]
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {size} (the size of the dim), but got {sizes}"
        )
    return sizes


@handler(aten.slice_backward.default, may_be_direct=True)
def _slice_backward(call: BoundCall) -> object:
    """Zeros around a gradient; where its dim is split, the result is split the same way."""
    func, args = call.func, call.args
    grad = cast(ShardedTensor, args[0])
    shape = [int(s) for s in cast("Sequence[int]", args[1])]
    dim = as_dim(args[2], len(shape))
    if not grad._layout.splits[dim] or grad.shape[dim] == shape[dim]:
        return run_by_rule(call)
    first, step, count = _bounds(shape[dim], args[3], args[4], args[5])
    runs = _runs(grad.shape, dim, Run(count, target=first, target_step=step))
    grad = resolved(grad, str(func), _LINEAR)
    return rearranged(
        [grad],
        grad._layout,
        shape,
        [Part(0, runs)],
        str(func),
        lambda piece: aten.slice_backward.default(piece, *args[1:]),
        fill=0,
    )


_LINEAR = frozenset({ReduceOp.SUM, ReduceOp.AVG})


@handler(aten.slice_scatter.default)
def _slice_scatter(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, source = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim]:
        return run_by_rule(call)
    first, step, count = _bounds(
        x.shape[dim], *(argument(func, args, kwargs, name) for name in ("start", "end", "step"))
    )
    if source.shape != (*x.shape[:dim], count, *x.shape[dim + 1 :]):
        return run_by_rule(call)  # torch refuses it
    x, given = alike([x, source], str(func))
    return _scattered(x, given, dim, first, step)


@handler(aten.select_scatter.default)
def _select_scatter(call: BoundCall) -> object:
    func, args = call.func, call.args
    x, source = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    dim = as_dim(args[2], x.dim())
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim]:
        return run_by_rule(call)
    index, size = cast(int, args[3]), x.shape[dim]
    if source.shape != (*x.shape[:dim], *x.shape[dim + 1 :]) or not -size <= index < size:
        return run_by_rule(call)  # torch refuses it
    index %= size
    x, given = alike([x, aten.unsqueeze.default(source, dim)], str(func))
    return _scattered(x, given, dim, index, 1)
