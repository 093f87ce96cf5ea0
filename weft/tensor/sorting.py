"""The largest of a split dim: each device offers its own largest, and only these travel."""

from __future__ import annotations

from typing import cast

import torch

from ..runtime.holding import holding
from ..sharding.geometry import box_at
from ..sharding.layout import Layout
from .arguments import argument, as_dim
from .dispatch import handler, run_by_rule
from .movement import moved, note_move
from .rearranging import resolved
from .tensor import Tensor, wrap

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


@handler(aten.topk.default)
def _topk(func: Op, args: Args, kwargs: Kwargs) -> object:
    x = cast(Tensor, args[0])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    k = cast(int, args[1])
    layout = x._layout.resolved
    if not x.dim() or not layout.splits[dim] or k < 1:
        return run_by_rule(func, args, kwargs)
    offers = k * layout.split_count(dim)
    if k > x.shape[dim] // layout.split_count(dim) or offers >= x.shape[dim]:
        return run_by_rule(func, args, kwargs)
    x = resolved(x, str(func))
    target = layout.with_split(dim, ())
    if holding(layout).unified:
        shape = [offers if d == dim else size for d, size in enumerate(x.shape)]
        for dtype in (x.dtype, torch.int64):
            note_move(_without_memory(shape, layout, dtype), target, str(func))
        values, indices = func(x._pieces[0], *args[1:], **kwargs)
        return tuple(wrap((each,), target, each.shape) for each in (values, indices))
    order = [argument(func, args, kwargs, name) for name in ("largest", "sorted")]
    offered = _offered(func, x, dim, k, order)
    values, indices = (moved(each, target, str(func), implicit=True) for each in offered)
    largest, at = func(values, k, dim, *order)
    return largest, aten.gather.default(indices, dim, at)


def _without_memory(shape: list[int], layout: Layout, dtype: torch.dtype) -> Tensor:
    return wrap((torch.empty(shape, dtype=dtype, device="meta"),), layout, shape)


def _offered(func: Op, x: Tensor, dim: int, k: int, order: list[object]) -> tuple[Tensor, Tensor]:
    """The k largest of each shard, and where they stand in the whole."""
    layout, here = x._layout, holding(x._layout)
    values, indices = [], []
    for piece, coords in zip(x._pieces, here.coords, strict=True):
        largest, at = func(piece, k, dim, *order)
        values.append(largest)
        indices.append(at + box_at(layout, x.shape, coords)[dim][0])
    shape = [k * layout.split_count(dim) if d == dim else size for d, size in enumerate(x.shape)]
    return (
        wrap(tuple(values), layout, shape, dtype=x.dtype),
        wrap(tuple(indices), layout, shape, dtype=torch.int64),
    )
