"""Ops along dims that must be whole: where one is split, the split goes aside to another dim if that moves less than gathering.

S(d)@x -> R@x       gather: each device receives nearly all
S(d)@x -> S(e)@x    all-to-all: each device receives its share of whole rows, and computes only these

A line that is sorted has no other dim: it is gathered, and each device keeps its part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.movement import moved
from ...engine.moves.rearranging import resolved
from ...engine.op_kind import for_each_result
from ...engine.sharded import ShardedTensor, as_sharded
from ...engine.strategy import BroughtTensor, Strategy, cheapest, decided_once
from ...engine.strides.restriding import as_op_gives
from ...rules.call import BoundCall
from ...sharding.layout import Layout

__all__ = ["set_aside", "whole_rows", "with_whole"]

aten = torch.ops.aten


def with_whole(layout: Layout, dims: Sequence[int]) -> Layout:
    """A layout with some dims whole."""
    return reduce(lambda whole, dim: whole.with_split(dim, ()), dims, layout)


@decided_once
def whole_rows(layout: Layout, shape: tuple[int, ...], itemsize: int, dims: tuple[int, ...]) -> Layout:
    """The layout with some dims whole that is reached soonest.

    >>> from weft.sharding.mesh import make_mesh
    >>> columns = Layout(make_mesh({"x": 4}), ((), ("x",)))
    >>> str(whole_rows(columns, (8, 8), 4, (1,)))
    '(x, –)'
    """
    whole = with_whole(layout, dims)
    axes = [axis for dim in dims for axis in layout.splits[dim]]
    others = [d for d, size in enumerate(shape) if d not in dims and size > 1]
    ways = [whole, *(whole.with_split(d, (*whole.splits[d], *axes)) for d in others)]
    return cheapest(
        [Strategy(f"whole rows, {way}", way, (BroughtTensor(layout, way, shape, itemsize),)) for way in ways]
    )


def set_aside(x: torch.Tensor, dims: Sequence[int], op: str) -> torch.Tensor:
    """A tensor with some dims whole, as it is where they are."""
    if not isinstance(x, ShardedTensor) or not x.numel() or not any(x._layout.splits[dim] for dim in dims):
        return x
    x = resolved(x, op)
    layout = whole_rows(x._layout, tuple(x.shape), x.dtype.itemsize, tuple(sorted(set(dims))))
    return moved(x, layout, op, implicit=True)


@handler(aten.sort.default, aten.sort.stable, aten.argsort.default, aten.argsort.stable, may_be_direct=True)
def _sorted(call: BoundCall) -> object:
    """What has one dim is sorted everywhere, and each device keeps its part: as it was split, so are the results."""
    x = call.tensor("self")
    result = _along(call)
    if not isinstance(x, ShardedTensor) or x.dim() != 1 or not x._layout.splits[0]:
        return result
    return for_each_result(result, lambda _, y: moved(as_sharded(y), x._layout.resolved, str(call), implicit=True))


@handler(aten.cummax.default, aten.cummin.default, may_be_direct=True)
def _best_so_far(call: BoundCall) -> object:
    """Of nothing, torch does not look which dim it is."""
    return _along(call if call.tensor("self").numel() else call.replaced(dim=0))


@handler(
    aten.mode.default,
    aten.median.dim,
    aten.nanmedian.dim,
    aten._fft_c2c.default,
    aten._fft_r2c.default,
    aten._fft_c2r.default,
    may_be_direct=True,
)
def _along(call: BoundCall) -> object:
    x = call.tensor("self")
    there = set_aside(x, call.dims("dim") if x.dim() else [], str(call))
    result = run_by_rule(call.replaced(self=there))
    return (
        result if there is x else as_op_gives(call, result, whole=True)
    )  # what was moved has no element in two places
