"""Slices: what is taken of a split dim stays split, and each device receives only what it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.rearranging import alike, note_rearrangement, rearranged, resolved
from ...engine.sharded import ShardedTensor, as_sharded, sharded
from ...engine.views.copy_views import Told
from ...engine.views.view import View
from ...engine.views.view_results import ViewOp, tell_whole
from ...engine.writes.writing import store
from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...rules.call import BoundCall
from ...runtime.lazy_copy import may_overlap
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

aten = torch.ops.aten
Op = torch._ops.OpOverload


def _bounds(call: BoundCall, size: int) -> tuple[int, int, int]:
    """The first index, the step and the number of indices of a slice, cut to the dim as torch does."""
    start, stop = (None if call.arg(name) is None else call.integer(name) for name in ("start", "end"))
    first, last, _ = slice(start, stop).indices(size)
    step = call.integer("step")
    return first, step, max(0, -(-(last - first) // step))


def _runs(shape: Sequence[int], dim: int, run: Run) -> tuple[Run, ...]:
    return tuple(run if d == dim else Run(size) for d, size in enumerate(shape))


@handler(aten.slice.Tensor, may_be_direct=True)
def _slice(call: BoundCall) -> object:
    x = sharded(call, "self")
    dim = call.dim("dim")
    if not x.dim() or call.integer("step") < 1 or not x._layout.splits[dim]:
        return run_by_rule(call)
    first, step, count = _bounds(call, x.shape[dim])
    return run_by_rule(call) if count == x.shape[dim] else sliced(x, dim, first, step, count)


def sliced(x: ShardedTensor, dim: int, first: int, step: int, count: int) -> ShardedTensor:
    """Every `step`-th index of a dim from `first`, as a view of `x` in its layout."""
    op = ViewOp(aten.slice.Tensor, (dim, first, first + count * step, step))
    shape = tuple(count if d == dim else size for d, size in enumerate(x.shape))
    taken = Part(0, _runs(shape, dim, Run(count, source=first, source_step=step)))
    y = rearranged([x], x._layout, shape, [taken], str(op.func), lambda piece: op.func(piece, *op.rest), is_view=True)

    def put_back(base: ShardedTensor, part: ShardedTensor) -> None:
        if may_overlap(base):  # what is written may be other elements of the base too
            op.write_whole(base, part)
        else:
            store(base, _scattered(base, part, dim, first, step), "slice")

    told = partial(_told, op.func, x._layout, shape, taken, dim, first, step)
    view = View(lambda base: sliced(base, dim, first, step, count), put_back, told, partial(op.geometry, x))
    return memory_of(x._layout).show(y, x, view)


def _told(func: Op, layout: Layout, shape: tuple[int, ...], taken: Part, dim: int, first: int, step: int) -> Told:
    """What a part of a dim moves when it is read, and when it is written back; the layout and the shape are the part's."""
    side = Side.of(layout, shape)
    placed = Part(0, _runs(shape, dim, Run(shape[dim], target=first, target_step=step)))

    def read(base: ShardedTensor) -> None:
        plan = Rearrangement((Side.of(base._layout, base.shape),), side, (taken,))
        note_rearrangement(plan, base.dtype.itemsize, str(func))

    def write(base: ShardedTensor, view: ShardedTensor) -> None:
        if may_overlap(base):
            return tell_whole(func, base, view)
        plan = Rearrangement((side,), Side.of(base._layout, base.shape), (placed,))
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
    x, index = sharded(call, "self"), call.integer("index")
    if not x.dim():
        return run_by_rule(call)
    dim = call.dim("dim")
    size = x.shape[dim]
    if not x._layout.splits[dim] or not -size <= index < size:
        return run_by_rule(call)
    return _selected(x, dim, index % size)


def _selected(x: ShardedTensor, dim: int, index: int) -> ShardedTensor:
    """One index of a split dim: whoever holds it gives it to the others."""
    op, target = ViewOp(aten.select.int, (dim, index)), x._layout.with_split(dim, ())
    shape = tuple(1 if d == dim else size for d, size in enumerate(x.shape))
    taken = Part(0, _runs(shape, dim, Run(1, source=index)))
    row = rearranged([x], target, shape, [taken], str(op.func), lambda piece: piece.narrow(dim, index, 1), is_view=True)

    def put_back(base: ShardedTensor, part: ShardedTensor) -> None:
        if may_overlap(base):
            op.write_whole(base, part)
        else:
            store(base, _scattered(base, as_sharded(aten.unsqueeze.default(part, dim)), dim, index, 1), "select")

    told = partial(_told, op.func, target, shape, taken, dim, index, 1)
    view = View(lambda base: _selected(base, dim, index), put_back, told, partial(op.geometry, x))
    return memory_of(target).show(as_sharded(aten.squeeze.dim(row, dim)), x, view)


@handler(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, may_be_direct=True)
def _split(call: BoundCall) -> object:
    """Pieces of a split dim are slices of it."""
    x = sharded(call, "self")
    dim = call.dim("dim")
    if not x.dim() or not x._layout.splits[dim]:
        return run_by_rule(call)
    if call.func is aten.unbind.int:
        return [_selected(x, dim, i) for i in range(x.shape[dim])]
    sizes = _sizes(call, x.shape[dim])
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [sliced(x, dim, start, 1, count) for start, count in zip(starts, sizes, strict=True)]


def _sizes(call: BoundCall, size: int) -> list[int]:
    if call.func is aten.split.Tensor:
        step = call.integer("split_size")
        if step < 0 or (step == 0 and size):
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
        return [min(step, size - start) for start in range(0, size, step)] if size else [0]
    sizes = call.integers("split_sizes")
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {size} (the size of the dim), but got {sizes}"
        )
    return sizes


@handler(aten.slice_backward.default, may_be_direct=True)
def _slice_backward(call: BoundCall) -> object:
    """Zeros around a gradient; where its dim is split, the result is split the same way."""
    grad, shape = sharded(call, "grad_output"), call.integers("input_sizes")
    dim = call.dim("dim", len(shape))
    if not grad._layout.splits[dim] or grad.shape[dim] == shape[dim]:
        return run_by_rule(call)
    first, step, count = _bounds(call, shape[dim])
    runs = _runs(grad.shape, dim, Run(count, target=first, target_step=step))
    grad = resolved(grad, str(call), _LINEAR)
    return rearranged(
        [grad], grad._layout, shape, [Part(0, runs)], str(call), lambda piece: call.func(piece, *call.args[1:]), fill=0
    )


_LINEAR = frozenset({ReduceOp.SUM, ReduceOp.AVG})


@handler(aten.slice_scatter.default)
def _slice_scatter(call: BoundCall) -> object:
    x, source, dim = call.tensor("self"), call.tensor("src"), call.dim("dim")
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim] or call.integer("step") < 1:
        return run_by_rule(call)
    first, step, count = _bounds(call, x.shape[dim])
    if source.shape != (*x.shape[:dim], count, *x.shape[dim + 1 :]):
        return run_by_rule(call)  # torch refuses it
    x, given = alike([x, source], str(call))
    return _scattered(x, given, dim, first, step)


@handler(aten.select_scatter.default)
def _select_scatter(call: BoundCall) -> object:
    x, source, dim = call.tensor("self"), call.tensor("src"), call.dim("dim")
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim]:
        return run_by_rule(call)
    index, size = call.integer("index"), x.shape[dim]
    if source.shape != (*x.shape[:dim], *x.shape[dim + 1 :]) or not -size <= index < size:
        return run_by_rule(call)  # torch refuses it
    x, given = alike([x, aten.unsqueeze.default(source, dim)], str(call))
    return _scattered(x, given, dim, index % size, 1)
