"""Ops along dims that must be whole: where one is split, the split goes aside to another dim if that moves less than gathering.

S(d)@x -> R@x       gather: each device receives nearly all
S(d)@x -> S(e)@x    all-to-all: each device receives its share of whole rows, and computes only these
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ...caches import cached
from ...engine.arguments import argument, as_dims
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.movement import moved
from ...engine.moves.rearranging import resolved
from ...engine.sharded import ShardedTensor
from ...planning import plan_layouts
from ...rules.call import BoundCall
from ...sharding.layout import Layout

__all__ = ["set_aside", "whole_rows"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


@cached(4096)
def whole_rows(layout: Layout, shape: tuple[int, ...], itemsize: int, dims: tuple[int, ...]) -> tuple[Layout, int]:
    """The layout with some dims whole that is reached with the fewest bytes, and how many a device receives for it.

    >>> from weft.sharding.mesh import make_mesh
    >>> columns = Layout(make_mesh({"x": 4}), ((), ("x",)))
    >>> str(whole_rows(columns, (8, 8), 4, (1,))[0])
    '(x, –)'
    """
    whole = layout
    for dim in dims:
        whole = whole.with_split(dim, ())
    axes = [axis for dim in dims for axis in layout.splits[dim]]
    others = [d for d, size in enumerate(shape) if d not in dims and size > 1]
    ways = [whole, *(whole.with_split(d, (*whole.splits[d], *axes)) for d in others)]
    prices = [plan_layouts(layout, way, shape, itemsize).bytes_received.max for way in ways]
    least = min(range(len(ways)), key=lambda k: prices[k])
    return ways[least], prices[least]


def set_aside(x: torch.Tensor, dims: Sequence[int], op: str) -> torch.Tensor:
    """A tensor with some dims whole, as it is where they are."""
    if not isinstance(x, ShardedTensor) or not x.numel() or not any(x._layout.splits[dim] for dim in dims):
        return x
    x = resolved(x, op)
    layout, _ = whole_rows(x._layout, tuple(x.shape), x.dtype.itemsize, tuple(sorted(set(dims))))
    return moved(x, layout, op, implicit=True)


@handler(
    aten.sort.default,
    aten.sort.stable,
    aten.argsort.default,
    aten.argsort.stable,
    aten.mode.default,
    aten.median.dim,
    aten.nanmedian.dim,
    aten.cummax.default,
    aten.cummin.default,
    aten._fft_c2c.default,
    aten._fft_r2c.default,
    aten._fft_c2r.default,
    may_be_direct=True,
)
def _along(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    dims = as_dims(argument(func, args, kwargs, "dim"), x.dim()) if x.dim() else []
    return run_by_rule(call.replaced(self=set_aside(x, dims, str(func))))
