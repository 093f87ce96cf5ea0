"""Slices: what is taken of a split dim stays split, and each device receives only what it does not hold."""

from __future__ import annotations

from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.gradient_target import wanted_layout
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain
from ...engine.moves.rearranging import alike, note_rearrangement, rearranged, resolved
from ...engine.ragged.alone import Alone, Home, Values, alone, alone_of, holders, number_along
from ...engine.ragged.rows import evenly
from ...engine.running.repeating_whole import repeat_alias
from ...engine.sharded import ShardedTensor, as_sharded, begins_at, sharded, stand_of, wrap
from ...engine.views.copy_views import Told, refresh, remember_counted_alone
from ...engine.views.view import View
from ...engine.views.view_results import ViewOp, tell_whole
from ...engine.writes.writing import store
from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...rules.call import BoundCall
from ...rules.ops.slicing import slice_bounds
from ...runtime.holding import holding
from ...runtime.memory.lazy_copy import may_overlap
from ...runtime.strides import Strides
from ...runtime.traced import is_traced
from ...sharding.geometry import resized
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

aten = torch.ops.aten
Op = torch._ops.OpOverload


@handler(aten.slice.Tensor, may_be_direct=True)
def _slice(call: BoundCall) -> object:
    x = sharded(call, "self")
    dim = call.dim("dim")
    if not x.dim() or call.integer("step") < 1 or not x._layout.splits[dim]:
        return run_by_rule(call)
    first, step, count = slice_bounds(call, x.shape[dim])
    if count == x.shape[dim]:
        return run_by_rule(call)
    y = sliced(x, dim, first, step, count)
    call.repeat = repeat_alias(call, y)
    return y


def sliced(x: ShardedTensor, dim: int, first: int, step: int, count: int) -> ShardedTensor:
    """Every `step`-th index of a dim from `first`, as a view of `x` in its layout."""
    op = ViewOp(aten.slice.Tensor, (dim, first, first + count * step, step))
    shape = resized(x.shape, dim, count)
    taken = Part.along(dim, Run(count, source=first, source_step=step), shape)
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
    placed = Part.along(dim, Run(shape[dim], target=first, target_step=step), shape)

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
    placed = Part.along(dim, Run(count, target=first, target_step=step), source.shape)
    rest = (dim, first, first + count * step, step)
    return rearranged(
        [source],
        x._layout,
        x.shape,
        [placed],
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
    y = _selected(x, dim, index % size)
    call.repeat = repeat_alias(call, y)
    return y


def _selected(x: ShardedTensor, dim: int, index: int) -> ShardedTensor:
    """One index of a split dim: whoever holds it gives it to the others; a matrix or more, not before they need it."""
    op, target = ViewOp(aten.select.int, (dim, index)), x._layout.with_split(dim, ())
    shape = resized(x.shape, dim, 1)
    taken = Part.along(dim, Run(1, source=index), shape)

    def put_back(base: ShardedTensor, part: ShardedTensor) -> None:
        if may_overlap(base):
            op.write_whole(base, part)
        else:
            store(base, _scattered(base, as_sharded(aten.unsqueeze.default(part, dim)), dim, index, 1), "select")

    def told() -> Told:
        of_part = _told(op.func, target, shape, taken, dim, index, 1)
        return Told(lambda base: of_stack(base).tell() if _is_stack(base, dim) else of_part.read(base), of_part.write)

    def of_stack(base: ShardedTensor) -> Alone:
        return _where_it_is(base, dim, index, op.geometry(base)[0])

    read = partial(_selected, dim=dim, index=index)
    if _is_stack(x, dim):
        own, (strides, offset) = of_stack(x), op.geometry(x)
        there = begins_at(x) + offset
        return memory_of(target).show(alone(own, strides, x.device, there), x, View(read, put_back, told))
    row = rearranged([x], target, shape, [taken], str(op.func), lambda piece: piece.narrow(dim, index, 1), is_view=True)
    view = View(read, put_back, told, partial(op.geometry, x))
    return memory_of(target).show(as_sharded(aten.squeeze.dim(row, dim)), x, view)


def _is_stack(x: ShardedTensor, dim: int) -> bool:
    """Whether a tensor is a stack of matrices, or more, of which every device has some, and no view that is a copy."""
    if x.dim() < 3 or x.shape[dim] < x._layout.split_count(dim) or x._layout.pending or is_traced() or x.is_meta:
        return False
    return x._value.shown is None and not x._value.is_put_off


def _where_it_is(x: ShardedTensor, dim: int, index: int, strides: Strides) -> Alone:
    """One index of a split dim, with the devices that have it."""
    layout, size, axes = x._layout, x.shape[dim], x._layout.splits[dim]
    at = evenly(layout.mesh, axes, size)
    number = int(at[index])
    home, stand = Home(layout.mesh, axes, number, index, size), stand_of(x)
    first = int((at < number).sum())

    def values() -> Values:
        base = stand.tensor
        refresh((base,))
        pieces, of = base._value.pieces, holding(base._layout).piece_of
        if not memory_of(base._layout).pieces_are_shards:
            return {None: pieces[0].select(dim, index)}
        here = [slot for slot in holders(base._layout, home) if slot is not None]
        return {slot: pieces[of[slot]].select(dim, index - first) for slot in here}

    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    target = layout.with_split(dim, ()).without_dim(dim)
    return Alone(home, target, shape, x.dtype, strides, values, str(aten.select.int))


@handler(aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, may_be_direct=True)
def _split(call: BoundCall) -> object:
    """Pieces of a split dim are slices of it."""
    x = sharded(call, "self")
    dim = call.dim("dim")
    if not x.dim() or not x._layout.splits[dim]:
        return run_by_rule(call)
    if call.func is aten.unbind.int:
        parts = [_selected(x, dim, i) for i in range(x.shape[dim])]
    else:
        sizes = _sizes(call, x.shape[dim])
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        parts = [sliced(x, dim, start, 1, count) for start, count in zip(starts, sizes, strict=True)]
    call.repeat = repeat_alias(call, parts)
    return parts


def _sizes(call: BoundCall, size: int) -> list[int]:
    if call.func is aten.split.Tensor:
        step = call.integer("split_size")
        if step < 0 or (step == 0 and size):
            raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
        # How many there are is a number, whatever a compiler leaves open of their sizes.
        count = int(-(-size // step)) if size else 1
        return [*[step] * (count - 1), size - step * (count - 1)]
    sizes = call.integers("split_sizes")
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {size} (the size of the dim), but got {sizes}"
        )
    return sizes


_SAFE = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


@handler(*_SAFE)
def _unsafe_split(call: BoundCall) -> object:
    """The same parts: torch does not know them as views, and counts their writes apart, but they have the memory."""
    x = sharded(call, "self")
    return [remember_counted_alone(as_sharded(part), x) for part in _SAFE[call.func](x, *call.args[1:], **call.kwargs)]


@handler(aten.slice_backward.default, may_be_direct=True)
def _slice_backward(call: BoundCall) -> object:
    """Zeros around a gradient; where its dim is split, the result is split the same way."""
    grad, shape = sharded(call, "grad_output"), call.integers("input_sizes")
    dim = call.dim("dim", len(shape))
    if not grad._layout.splits[dim] or grad.shape[dim] == shape[dim]:
        return run_by_rule(call)
    first, step, count = slice_bounds(call, shape[dim])
    placed = Part.along(dim, Run(count, target=first, target_step=step), grad.shape)
    grad = resolved(grad, str(call), _LINEAR)
    return rearranged(
        [grad], grad._layout, shape, [placed], str(call), lambda piece: call.func(piece, *call.args[1:]), fill=0
    )


_LINEAR = frozenset({ReduceOp.SUM, ReduceOp.AVG})


@handler(aten.select_backward.default, may_be_direct=True)
def _select_backward(call: BoundCall) -> object:
    """Zeros around a gradient; where the devices have it that have the index, they put it there, and nothing moves."""
    grad, shape = sharded(call, "grad_output"), tuple(call.integers("input_sizes"))
    dim, own = call.dim("dim", len(shape)), alone_of(grad)
    wanted = None if own is None else wanted_layout("SelectBackward0", shape)
    if own is None or wanted is None or wanted.splits[dim] != own.home.axes:
        return run_by_rule(call)
    index, axes = call.integer("index") % shape[dim], own.home.axes
    at = evenly(grad.mesh, axes, shape[dim])
    waiting = {axis: kind for axis, kind in own.layout.pending if axis not in axes}
    made = own.layout.with_pending(waiting).with_dim(dim, axes)
    if int(at[index]) != own.home.number or grad.mesh != wanted.mesh:
        return run_by_rule(call)
    values = own.values()
    if None in values:
        return from_plain(aten.select_backward.default(values[None], shape, dim, index), made)
    first, here, pieces = int((at < own.home.number).sum()), holding(made), []
    for k, (slot, device) in enumerate(zip(here.slots, here.devices, strict=True)):
        local = here.piece_shape(k, shape)
        if slot in values:
            pieces.append(aten.select_backward.default(values[slot], local, dim, index - first))
        else:
            pieces.append(torch.zeros(local, dtype=grad.dtype, device=device))
    return wrap(tuple(pieces), made, shape, dtype=grad.dtype)


@handler(aten.stack.default, may_be_direct=True)
def _stack(call: BoundCall) -> object:
    """The gradient of a stack that was taken apart: the devices put together what they have of it, and nothing moves."""
    tensors = call.tensor_list("tensors")
    held = [alone_of(x) for x in tensors]
    own = next((each for each in held if each is not None), None)
    if own is None or any(each is None and isinstance(x, ShardedTensor) for x, each in zip(tensors, held, strict=True)):
        return run_by_rule(call)
    dim, mesh, axes = call.dim("dim", len(own.shape) + 1), own.home.mesh, own.home.axes
    shape = (*own.shape[:dim], len(tensors), *own.shape[dim:])
    wanted, at = wanted_layout("UnbindBackward0", shape), evenly(mesh, axes, len(tensors)).tolist()
    if wanted is None or wanted.mesh != mesh or wanted.splits[dim] != axes:
        return run_by_rule(call)
    homes = [(each.home.axes, each.home.number, each.layout) for each in held if each is not None]
    if homes != [(axes, number, own.layout) for number, each in zip(at, held, strict=True) if each is not None]:
        return run_by_rule(call)
    waiting = {axis: kind for axis, kind in own.layout.pending if axis not in axes}
    each_lies = own.layout.with_pending(waiting)
    # Of what was not used, torch gives zeros, which are plain.
    values = [_values(x, each_lies) if each is None else each.values() for x, each in zip(tensors, held, strict=True)]
    made = each_lies.with_dim(dim, axes)
    if not memory_of(made).pieces_are_shards:
        return from_plain(torch.stack([each[None] for each in values], dim), made)
    pieces = []
    for slot, coords in zip(holding(made).slots, holding(made).coords, strict=True):
        number = number_along(mesh, axes, coords)
        pieces.append(torch.stack([each[slot] for each, there in zip(values, at, strict=True) if there == number], dim))
    return wrap(tuple(pieces), made, shape, dtype=own.dtype)


def _values(x: torch.Tensor, layout: Layout) -> Values:
    """What each device has of a plain tensor in a layout."""
    if not memory_of(layout).pieces_are_shards:
        return {None: x}
    pieces = from_plain(x, layout)._value.pieces
    return {slot: pieces[at] for slot, at in holding(layout).piece_of.items()}


@handler(aten.slice_scatter.default)
def _slice_scatter(call: BoundCall) -> object:
    x, source, dim = call.tensor("self"), call.tensor("src"), call.dim("dim")
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim] or call.integer("step") < 1:
        return _lying_as(run_by_rule(call), x)
    first, step, count = slice_bounds(call, x.shape[dim])
    if source.shape != resized(x.shape, dim, count):
        return run_by_rule(call)  # torch refuses it
    whole, given = alike([x, source.to(x.dtype)], str(call))
    return _lying_as(_scattered(whole, given, dim, first, step), x)


@handler(aten.select_scatter.default)
def _select_scatter(call: BoundCall) -> object:
    x, source, dim = call.tensor("self"), call.tensor("src"), call.dim("dim")
    if not isinstance(x, ShardedTensor) or not x._layout.splits[dim]:
        return _lying_as(run_by_rule(call), x)
    index, size = call.integer("index"), x.shape[dim]
    if source.shape != (*x.shape[:dim], *x.shape[dim + 1 :]) or not -size <= index < size:
        return run_by_rule(call)  # torch refuses it
    whole, given = alike([x, aten.unsqueeze.default(source.to(x.dtype), dim)], str(call))
    return _lying_as(_scattered(whole, given, dim, index % size, 1), x)


@handler(aten.diagonal_scatter.default)
def _diagonal_scatter(call: BoundCall) -> object:
    return _lying_as(run_by_rule(call), call.tensor("self"))


def _lying_as(y: object, x: torch.Tensor) -> object:
    """What was written to a copy of a tensor: torch keeps the gaps of what it copies, and where it begins; what was brought has none."""
    if not isinstance(x, ShardedTensor) or not isinstance(y, ShardedTensor) or may_overlap(x):
        return y
    return memory_of(y._layout).laid_like(y, x)
