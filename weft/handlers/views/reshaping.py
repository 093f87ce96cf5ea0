"""Reshapes of any layout: dims that do not split alike before and after exchange stretches of their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch

from ...caches import BoundedCache, cached
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.movement import laid, moved
from ...engine.moves.rearranging import note_rearrangement
from ...engine.moves.telling import note_move, note_return
from ...engine.op_plan import decided, layouts_for
from ...engine.sharded import ShardedTensor, as_sharded, begins_at, sharded, stand_of
from ...engine.strategy import is_considered, unconsidered
from ...engine.total import Total
from ...engine.views.copy_views import Told, count_beside, repeats
from ...engine.views.folded import fold
from ...engine.views.view import View
from ...engine.views.view_results import ViewOp
from ...engine.writes.writing import store
from ...rules.call import BoundCall, Op
from ...runtime.holding import Pieces
from ...runtime.machine import forget_with_residences
from ...runtime.on_paper import aside
from ...runtime.strides import Strides
from ...runtime.traced import hinted, is_open, settled
from .reshape_way import ReshapeWay, cut_alike, find_way, is_free_merge, merged_from

__all__ = ["free_reshape", "show_folded"]

aten = torch.ops.aten

_ways = BoundedCache[object, ReshapeWay | None](1 << 14, cleared_by=forget_with_residences)


@handler(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    may_be_direct=True,
)
def _reshape(call: BoundCall) -> object:
    x = sharded(call, "self")
    shape = _full_shape(x, call.integers("size" if call.has("size") else "shape"))
    func = aten.view.default if call.func is aten._reshape_alias.default else call.func
    if func is call.func:
        call.args = (x, list(shape))  # said in full, for whoever repeats it
    else:
        call = BoundCall(func, (x, list(shape)))
    way = _way_of(func, x, shape)
    if way is None:
        if func is aten.reshape.default and repeats(x) and not _is_view(tuple(x.shape), x.stride(), shape):
            call = BoundCall(
                func, (aten.clone.default(x, memory_format=torch.contiguous_format), list(shape))
            )  # as torch does
        y = as_sharded(run_by_rule(call))
        return _showing(func, x, y, shape) if memory_of(x._layout).has_copied(y, x) else y
    if func is not aten.reshape.default:
        # What no strides can say, torch refuses here; elements that are exchanged would take any shape.
        with aside():
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").view(shape)
    base = None if x.is_inference() else _merged_next(func, x, shape)
    if base is not None:
        groups = merged_from(tuple(base.shape), shape)
        assert groups is not None
        return _folded(func, x, shape, way, groups, base)
    return _showing(func, x, _exchanged(x, shape, way), shape)


def _merged_next(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor | None:
    """The tensor in dims that need only be merged to give the new shape; None where it takes a movement to get there.

    (8, 4@dp, 16@tp) as (8, 4@dp, 4@tp, 4), of which (8, 16, 4) is merged.
    """
    if 0 in shape or any(splits for splits, size in zip(x._layout.splits, x.shape, strict=True) if size == 1):
        return None
    parts = cut_alike(tuple(x.shape), shape)
    if parts is None:
        return None
    base = free_reshape(func, x, [size for part in parts for size in part])
    if base is None:
        return None
    # What can be merged without an exchange is merged at once.
    kept: list[int] = []
    start = 0
    for part in parts:
        splits = base._layout.splits[start : start + len(part)]
        start += len(part)
        kept += [math.prod(part)] if part and is_free_merge(base.mesh, part, splits) else part
    return free_reshape(func, base, kept)


def free_reshape(func: Op, x: ShardedTensor, shape: Sequence[int]) -> ShardedTensor | None:
    """A reshape, if it moves nothing."""
    if tuple(shape) == tuple(x.shape):
        return x
    way = aten.view.default if func is aten.view.default else aten.reshape.default
    if layouts_for(BoundCall(way, (x, list(shape))))[0] is not x._layout:
        return None
    return as_sharded(way(x, list(shape)))


def _folded(
    func: Op, x: ShardedTensor, shape: tuple[int, ...], way: ReshapeWay, groups: tuple[int, ...], base: ShardedTensor
) -> ShardedTensor:
    """A reshape that merges dims: its elements are exchanged when something other than a product needs them."""
    # Torch refuses views that the strides do not allow.
    seen = aten.reshape.default if func is aten.reshape.default else aten.view.default
    strides, offset = ViewOp(seen, (list(shape),)).geometry(x)
    stand = stand_of(x)

    def exchange() -> tuple[Pieces, Total | None]:
        made = _exchanged(stand.tensor, shape, way)
        return memory_of(way.after).ordered(made._value.pieces, strides), made._value.total

    y = fold(base, groups, way.after, shape, exchange, strides, begins_at(x) + offset)
    return _showing(func, x, y, shape, is_placed=True)


def show_folded(x: ShardedTensor, base: ShardedTensor) -> None:
    """Has a folded tensor of its own show the one that it is folded from: views of either are views of both."""
    count_beside(x, base)
    _showing(aten.view.default, base, x, tuple(x.shape), is_placed=True)


def _full_shape(x: ShardedTensor, size: list[int]) -> tuple[int, ...]:
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        if size.count(-1) > 1 or rest == 0 or x.numel() % rest:
            raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
        size[size.index(-1)] = x.numel() // rest
    if math.prod(size) != x.numel():
        raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
    return tuple(size)


def _way_of(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> ReshapeWay | None:
    """The exchange that a reshape takes, now or before."""
    if is_open((*x.shape, *shape)):
        return _way(func, x, shape)
    key = (x._layout, x.shape, shape, x.dtype)
    if key in _ways and not is_considered():
        return _ways[key]
    way = _ways[key] = _way(func, x, shape)
    return way


def _way(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> ReshapeWay | None:
    """The exchange, or None where the rule moves nothing, or no more."""
    with unconsidered():
        need = layouts_for(BoundCall(func, (x, list(shape))))[0]
    if need is x._layout or not x.numel():
        return None
    is_merge = _merged_next(func, x, shape) is not None
    old, itemsize = tuple(x.shape), x.dtype.itemsize
    if is_open((*old, *shape)):  # chosen for the sizes at hand, planned for those that come
        way = find_way(x._layout, hinted(old), hinted(shape), itemsize, need, is_merge=is_merge)
        if way is None or way.is_short(old, shape):
            return way
    return find_way(x._layout, settled(old), settled(shape), itemsize, need, is_merge=is_merge)


def _exchanged(x: ShardedTensor, shape: tuple[int, ...], way: ReshapeWay) -> ShardedTensor:
    there = laid(x, way.before, "reshape")
    sizes = (*x.shape, *shape)
    note_rearrangement(way, x.dtype.itemsize, "reshape", sizes)
    memory = memory_of(way.after)
    return memory.rearrange(
        [there], lambda: (way, sizes), way.after, shape, "reshape", lambda piece: piece.reshape(shape), is_view=True
    )


def _showing(
    func: Op, x: ShardedTensor, y: ShardedTensor, shape: tuple[int, ...], *, is_placed: bool = False
) -> ShardedTensor:
    """A reshaped tensor that shows what the other holds, also after one of them is written to.

    `is_placed`: it has the strides and the offset of a view already.
    """
    if func is aten.reshape.default and not is_placed and not _is_view(tuple(x.shape), x.stride(), shape):
        return y  # a copy for torch, too
    old, layout = list(x.shape), y._layout

    def read(base: ShardedTensor) -> ShardedTensor:
        again = as_sharded(aten.reshape.default(base, list(shape)))
        return again if again._layout is layout else moved(again, layout, "reshape", implicit=True)

    def put_back(base: ShardedTensor, view: ShardedTensor) -> None:
        if view._value.fold is not None:
            view._value.fold.forget()
        store(base, as_sharded(aten.reshape.default(view, old)), "reshape")

    view = View(
        read,
        put_back,
        lambda: Told(lambda base: _tell(base, shape), _tell_back),
        None if is_placed else partial(ViewOp(aten.view.default, (list(shape),)).geometry, x),
        is_loose=func is aten._unsafe_view.default,
    )
    return memory_of(x._layout).show(y, x, view)


@cached(4096, of_sizes=True)
def _is_view(shape: tuple[int, ...], strides: Strides, new: tuple[int, ...]) -> bool:
    """Whether a reshape of a tensor that lies so is a view of it."""
    with aside():
        x = torch.empty_strided(shape, strides, device="meta")
        return bool(x.reshape(new).untyped_storage()._cdata == x.untyped_storage()._cdata)


def _tell(x: ShardedTensor, shape: tuple[int, ...]) -> None:
    """Logs and reports what a reshape moves."""
    way = _way_of(aten.view.default, x, shape)
    if way is None:
        note_move(x, layouts_for(BoundCall(aten.view.default, (x, list(shape))))[0], "reshape")
        return
    note_move(x, way.before, "reshape")
    note_rearrangement(way, x.dtype.itemsize, "reshape", (*x.shape, *shape))


def _tell_back(base: ShardedTensor, view: ShardedTensor) -> None:
    """Logs and reports what a reshaped view that is written back moves."""
    shape = tuple(base.shape)
    _tell(view, shape)
    way = _way_of(aten.view.default, view, shape)
    outputs = decided(BoundCall(aten.view.default, (view, list(shape)))).outputs
    after = way.after if way is not None else outputs[0] if outputs else base._layout
    note_return(base, after, "reshape")
