"""Reshapes of any layout: dims that do not split alike before and after exchange stretches of their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.movement import moved, note_move, note_return
from ...engine.moves.rearranging import here, note_rearrangement
from ...engine.op_plan import decided, layouts_for
from ...engine.sharded import ShardedTensor, stand_of, wrap
from ...engine.views.copy_views import Told, is_observed, remember, remember_alias, remember_told
from ...engine.views.folded import fold
from ...engine.views.view_results import shown, view_geometry
from ...engine.writes.writing import store
from ...rules.call import BoundCall
from ...runtime.holding import Pieces, holding
from ...runtime.machine import forget_with_residences
from ...runtime.processes.mesh_processes import spans
from ...runtime.rearranging import rearrange
from ...runtime.strides import in_order
from ...sharding.geometry import box_at, box_shape
from .reshape_way import Way, cut_alike, find_way, is_free_merge, merged_from

__all__ = ["free_reshape"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


_ways: dict[object, Way | None] = {}
forget_with_residences(_ways.clear)


@handler(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    may_be_direct=True,
)
def _reshape(call: BoundCall) -> object:
    x = cast(ShardedTensor, call.tensor("self"))
    shape = _full_shape(x, call.integers("size" if call.has("size") else "shape"))
    func = aten.view.default if call.func is aten._reshape_alias.default else call.func
    if func is call.func:
        call.args = (x, list(shape))  # said in full, for whoever repeats it
    else:
        call = BoundCall(func, (x, list(shape)))
    way = _way_of(func, x, shape)
    if way is None:
        return run_by_rule(call) if holding(x._layout).unified else _by_rule(call, x, shape)
    if func is aten.view.default:
        # What no strides can say, torch refuses here; elements that are exchanged would take any shape.
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta").view(shape)
    base = _merged_next(func, x, shape)
    if base is not None:
        groups = merged_from(tuple(base.shape), shape)
        assert groups is not None
        return _folded(func, x, shape, way, groups, base)
    return _as_view(func, x, _exchanged(x, shape, way), shape)


def _merged_next(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor | None:
    """The tensor in dims that need only be merged to give the new shape; None where it takes a movement to get there.

    (8, 4@dp, 16@tp) as (8, 4@dp, 4@tp, 4), of which (8, 16, 4) is merged.
    """
    if x.is_inference() or 0 in shape:
        return None
    if any(splits for splits, size in zip(x._layout.splits, x.shape, strict=True) if size == 1):
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
    return cast(ShardedTensor, way(x, list(shape)))


def _folded(
    func: Op, x: ShardedTensor, shape: tuple[int, ...], way: Way, groups: tuple[int, ...], base: ShardedTensor
) -> ShardedTensor:
    """A reshape that merges dims: its elements are exchanged when something other than a product needs them."""
    seen = (
        func if func is aten.view.default else aten.reshape.default
    )  # torch refuses views that the strides do not allow
    (strides, offset), *_ = view_geometry(seen, (list(shape),), {}, x)

    stand, unified = stand_of(x), holding(x._layout).unified

    def exchange() -> Pieces:
        made = _exchanged(stand.tensor, shape, way)
        y._value.total = made._value.total
        return made._value.pieces if unified else tuple(in_order(piece, strides) for piece in made._value.pieces)

    y = fold(base, groups, way.after, shape, exchange, strides, int(x.storage_offset()) + offset)
    return _showing(func, x, y, shape)


def _full_shape(x: ShardedTensor, size: list[int]) -> tuple[int, ...]:
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        if size.count(-1) > 1 or rest == 0 or x.numel() % rest:
            raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
        size[size.index(-1)] = x.numel() // rest
    if math.prod(size) != x.numel():
        raise RuntimeError(f"shape '{size}' is invalid for input of size {x.numel()}")
    return tuple(size)


def _way_of(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> Way | None:
    """The exchange that a reshape takes, now or before."""
    key = (x._layout, x.shape, shape, x.dtype)
    if key not in _ways:
        if len(_ways) > 1 << 14:
            _ways.clear()
        _ways[key] = _way(func, x, shape)
    return _ways[key]


def _way(func: Op, x: ShardedTensor, shape: tuple[int, ...]) -> Way | None:
    """The exchange, or None where the rule moves nothing, or no more."""
    need = layouts_for(BoundCall(func, (x, list(shape))))[0]
    if need is x._layout or not x.numel():
        return None
    return find_way(x._layout, tuple(x.shape), shape, x.dtype.itemsize, need)


def _exchanged(x: ShardedTensor, shape: tuple[int, ...], way: Way) -> ShardedTensor:
    if holding(x._layout).unified:
        if x._layout is not way.before:
            note_move(x, way.before, "reshape")
        note_rearrangement(way.plan, x.dtype.itemsize, "reshape")
        return here([x], way.after, lambda piece: piece.reshape(shape), is_view=True)
    there = x if x._layout is way.before else moved(x, way.before, "reshape", implicit=True)
    note_rearrangement(way.plan, x.dtype.itemsize, "reshape")
    flat = [
        piece.reshape([stop - start for start, stop in way.plan.sources[0].box(coords)])
        for piece, coords in zip(there._value.pieces, holding(way.before).coords, strict=True)
    ]
    made = rearrange([tuple(flat)], way.plan, x.dtype)
    pieces = tuple(
        piece.view(box_shape(box_at(way.after, shape, coords)))
        for piece, coords in zip(made, holding(way.after).coords, strict=True)
    )
    return wrap(pieces, way.after, shape, dtype=x.dtype)


def _by_rule(call: BoundCall, x: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor:
    """In separate memories: shards that lie otherwise than the whole may have to be copied."""
    y = cast(ShardedTensor, run_by_rule(call))
    if (y._value.shown is None or y._value.shown.read is None) and any(
        new.untyped_storage()._cdata != old.untyped_storage()._cdata
        for new, old in zip(y._value.pieces, x._value.pieces, strict=True)
    ):
        return _as_view(call.func, x, y, shape)
    return y


def _as_view(func: Op, x: ShardedTensor, y: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor:
    if holding(x._layout).unified:
        return _showing(func, x, y, shape)
    return _showing(func, x, shown(x, y, view_geometry(aten.view.default, (list(shape),), {}, x)[0]), shape)


def _showing(func: Op, x: ShardedTensor, y: ShardedTensor, shape: tuple[int, ...]) -> ShardedTensor:
    """A reshaped tensor that shows what the other holds, also after one of them is written to."""
    unified, old = holding(x._layout).unified, list(x.shape)
    if unified and not is_observed():
        return remember_alias(y, x)
    told = Told(lambda base: _tell(base, shape), _tell_back)
    if unified:
        return remember_told(y, x, told)

    def put_back(base: ShardedTensor, view: ShardedTensor) -> None:
        if view._value.fold is not None:
            view._value.fold.forget()
        store(base, aten.reshape.default(view, old), "reshape")

    # An unsafe view mostly is of a tensor that nobody else has; it need not stay for its sake. When it goes, processes
    # may not agree on, and what they do then must not depend on that.
    weakly = func is aten._unsafe_view.default
    if weakly and spans(x.mesh):
        return y
    return remember(y, x, lambda base: aten.reshape.default(base, list(shape)), put_back, weakly=weakly, told=told)


def _tell(x: ShardedTensor, shape: tuple[int, ...]) -> None:
    """Logs and reports what a reshape moves."""
    way = _way_of(aten.view.default, x, shape)
    note_move(
        x, layouts_for(BoundCall(aten.view.default, (x, list(shape))))[0] if way is None else way.before, "reshape"
    )
    if way is not None:
        note_rearrangement(way.plan, x.dtype.itemsize, "reshape")


def _tell_back(base: ShardedTensor, view: ShardedTensor) -> None:
    """Logs and reports what a reshaped view that is written back moves."""
    shape = tuple(base.shape)
    _tell(view, shape)
    way = _way_of(aten.view.default, view, shape)
    outputs = decided(BoundCall(aten.view.default, (view, list(shape)))).outputs
    after = way.after if way is not None else outputs[0] if outputs else base._layout
    note_return(base, after, "reshape")
