"""The largest of a split dim: each device offers its own largest, and only these travel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import held_whole
from ...engine.moves.movement import moved
from ...engine.moves.rearranging import resolved
from ...engine.moves.telling import note_steps
from ...engine.op_plan import layouts_for
from ...engine.sharded import ShardedTensor, sharded, wrap, wrap_whole
from ...engine.strategy import BroughtTensor, Strategy, cheapest, decided_once, unconsidered
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...sharding.geometry import box_at
from ...sharding.layout import Layout
from .swap_split import set_aside, whole_rows

aten = torch.ops.aten
Op = torch._ops.OpOverload
Best = tuple[torch.Tensor, torch.Tensor]
"""Values and where they stand along a dim, which is kept."""
Pick = Callable[[torch.Tensor], Best]


@handler(aten.topk.default, may_be_direct=True)
def _topk(call: BoundCall) -> object:
    func, x, k, dim = call.func, sharded(call, "self"), call.integer("k"), call.dim("dim")
    order = call.flag("largest"), call.flag("sorted")
    if _is_offered(x, dim, k, _rows(x, dim)):
        return _by_offers(x, dim, k, lambda value: func(value, k, dim, *order), str(func))
    return run_by_rule(call.replaced(self=set_aside(x, [dim] if x.dim() else [], str(func))))


@handler(aten.kthvalue.default, may_be_direct=True)
def _kthvalue(call: BoundCall) -> object:
    """One of the smallest is one of the smallest that devices offer, one of the largest one of the largest."""
    func, x, k, dim = call.func, sharded(call, "self"), call.integer("k"), call.dim("dim")
    count = x.shape[dim] if x.dim() else 1
    largest = count - k + 1 < k
    offered = count - k + 1 if largest else k
    if 1 <= k <= count and _is_offered(x, dim, offered, _rows(x, dim)):

        def place(value: torch.Tensor) -> Best:
            best: Best = func(value, value.shape[dim] - offered + 1 if largest else k, dim, True)
            return best

        offer = partial(torch.topk, k=offered, dim=dim, largest=largest)
        best = _by_offers(x, dim, offered, place, str(func), offer)
        return best if call.flag("keepdim") else tuple(aten.squeeze.dim(y, dim) for y in best)
    return run_by_rule(call.replaced(self=set_aside(x, [dim] if x.dim() else [], str(func))))


def _by_rule(call: BoundCall) -> Layout:
    """The layout in which the rule takes the tensor."""
    with unconsidered():
        return layouts_for(call)[0].resolved


def _rows(x: ShardedTensor, dim: int) -> Layout:
    """The layout that brings whole rows to devices soonest."""
    layout = x._layout.resolved
    with unconsidered():
        return whole_rows(layout, tuple(x.shape), x.dtype.itemsize, (dim,)) if x.dim() else layout


def _is_offered(x: ShardedTensor, dim: int, k: int, whole: Layout) -> bool:
    """Whether each device is to offer its k best of a dim, which is cheaper than to bring `x` to where the dim is whole."""
    layout = x._layout.resolved
    if not x.dim() or not x.numel() or not layout.splits[dim] or not 1 <= k <= x.shape[dim] // layout.split_count(dim):
        return False
    return _offers_first(layout, whole, tuple(x.shape), x.dtype.itemsize, dim, _shape_of_offers(x, dim, k))


@decided_once
def _offers_first(
    layout: Layout, whole: Layout, shape: tuple[int, ...], itemsize: int, dim: int, offered: tuple[int, ...]
) -> bool:
    if offered[dim] >= shape[dim]:
        return False
    target = layout.with_split(dim, ())
    offers = tuple(BroughtTensor(layout, target, offered, size) for size in (itemsize, torch.int64.itemsize))
    rows = BroughtTensor(layout, whole, shape, itemsize)
    return cheapest([Strategy("offer the best of each part", True, offers), Strategy("whole rows", False, (rows,))])


def _shape_of_offers(x: ShardedTensor, dim: int, k: int) -> tuple[int, ...]:
    return tuple(k * x._layout.split_count(dim) if d == dim else size for d, size in enumerate(x.shape))


@handler(aten.max.dim, aten.min.dim, may_be_direct=True)
def _extreme(call: BoundCall) -> object:
    func, x, dim = call.func, sharded(call, "self"), call.dim("dim")
    if not _is_offered(x, dim, 1, _by_rule(call)):
        return run_by_rule(call)
    best = _by_offers(x, dim, 1, lambda value: func(value, dim, True), str(func))
    return best if call.flag("keepdim") else tuple(aten.squeeze.dim(each, dim) for each in best)


_EXTREMES = {aten.argmax.default: aten.max.dim, aten.argmin.default: aten.min.dim}


@handler(*_EXTREMES, may_be_direct=True)
def _place_of_extreme(call: BoundCall) -> object:
    x, keepdim, extreme = sharded(call, "self"), call.flag("keepdim"), _EXTREMES[call.func]
    if not x.numel() or not x._layout.split_axes:
        return run_by_rule(call)
    call.on([torch.ones((1,) * x.dim(), dtype=x.dtype)])  # torch refuses other dtypes than those of the extreme itself
    if call.arg("dim") is None:
        place = _place_in_all(extreme, x)
        return aten.reshape.default(place, [1] * x.dim()) if keepdim else place
    dim = call.dim("dim")
    if not _is_offered(x, dim, 1, _by_rule(call)):
        return run_by_rule(call)
    _, places = _by_offers(x, dim, 1, lambda value: extreme(value, dim, True), str(call))
    return places if keepdim else aten.squeeze.dim(places, dim)


def _place_in_all(extreme: Op, x: torch.Tensor) -> torch.Tensor:
    """The index of the first extreme in row-major order: where it stands in its row, and where the row stands."""
    values, places = BoundCall(extreme, (x, -1, False)).results()
    if x.dim() == 1:
        return places
    row = _place_in_all(extreme, values)
    return row * x.shape[-1] + places.take(row)


def _by_offers(x: ShardedTensor, dim: int, k: int, pick: Pick, op: str, offer: Pick | None = None) -> Best:
    """The best of a split dim from what each device offers; `offer` gives the k best of a part, where `pick` gives less."""
    x = resolved(x, op)
    layout, shape = x._layout, _shape_of_offers(x, dim, k)
    target = layout.with_split(dim, ())
    whole = held_whole(x)
    if whole is not None:
        for dtype in (x.dtype, torch.int64):
            note_steps(layout, target, shape, dtype, op)
        values, places = pick(whole)
        return wrap_whole(values, target), wrap_whole(places, target)
    offered = _offered(x, dim, shape, offer or pick)
    values, places = (moved(each, target, op, implicit=True) for each in offered)
    best, at = pick(values)
    return best, aten.gather.default(places, dim, at)


def _offered(x: ShardedTensor, dim: int, shape: tuple[int, ...], pick: Pick) -> tuple[ShardedTensor, ShardedTensor]:
    """The best of each shard, and where they stand in the whole."""
    layout = x._layout
    values, places = [], []
    for piece, coords in zip(x._value.pieces, holding(layout).coords, strict=True):
        best, at = pick(piece)
        values.append(best)
        places.append(at + box_at(layout, x.shape, coords)[dim][0])
    return (
        wrap(tuple(values), layout, shape, dtype=x.dtype),
        wrap(tuple(places), layout, shape, dtype=torch.int64),
    )
