"""Running sums and products along a split dim: each device scans its part, and the totals of the parts travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from ...engine.arguments import argument, as_dim
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.movement import moved, note_move
from ...engine.sharded import ShardedTensor, wrap
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...sharding.layout import Layout

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]

_COMBINED: dict[Op, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    aten.cumsum.default: torch.add,
    aten.cumprod.default: torch.mul,
    aten.logcumsumexp.default: torch.logaddexp,
}
"""How the total of the parts before is put to what a part gives."""


@handler(*_COMBINED, may_be_direct=True)
def _scan(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    layout = x._layout
    if not x.dim() or layout.pending or not layout.splits[dim] or x.shape[dim] < 2 * layout.split_count(dim):
        return run_by_rule(call)
    parts = layout.split_count(dim)
    shape = [parts if d == dim else size for d, size in enumerate(x.shape)]
    target = layout.with_split(dim, ())
    if holding(layout).unified:
        whole = func(x._value.pieces[0], *args[1:], **kwargs)
        note_move(wrap((torch.empty(shape, dtype=whole.dtype, device="meta"),), layout, shape), target, str(func))
        return wrap((whole,), layout, x.shape)
    scanned = [func(piece, *args[1:], **kwargs) for piece in x._value.pieces]
    last = tuple(piece.narrow(dim, piece.shape[dim] - 1, 1) for piece in scanned)
    dtype = scanned[0].dtype if scanned else cast("torch.dtype | None", kwargs.get("dtype")) or x.dtype
    totals = moved(wrap(last, layout, shape, dtype=dtype), target, str(func), implicit=True)
    pieces = tuple(_continued(func, piece, totals, layout, i, dim) for i, piece in enumerate(scanned))
    return wrap(pieces, layout, x.shape, dtype=dtype)


def _continued(
    func: Op, scanned: torch.Tensor, totals: ShardedTensor, layout: Layout, i: int, dim: int
) -> torch.Tensor:
    """What a part gives after the parts before it."""
    here, beside = holding(layout), holding(totals._layout)
    number = here.box(i, totals.shape)[dim][0]
    if not number:
        return scanned
    before = totals._value.pieces[beside.piece_of[here.slots[i]]].narrow(dim, 0, number)
    total = func(before, dim).narrow(dim, number - 1, 1)
    return _COMBINED[func](scanned, total)
