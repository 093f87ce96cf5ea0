"""Running sums and products along a split dim: each device scans its part, and the totals of the parts travel."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import held_whole
from ...engine.moves.movement import moved
from ...engine.moves.telling import note_steps
from ...engine.sharded import ShardedTensor, sharded, wrap, wrap_whole
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...sharding.layout import Layout

aten = torch.ops.aten
Op = torch._ops.OpOverload

_COMBINED: dict[Op, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    aten.cumsum.default: torch.add,
    aten.cumprod.default: torch.mul,
    aten.logcumsumexp.default: torch.logaddexp,
}
"""How the total of the parts before is put to what a part gives."""


@handler(*_COMBINED, may_be_direct=True)
def _scan(call: BoundCall) -> object:
    func, x, dim = call.func, sharded(call, "self"), call.dim("dim")
    layout = x._layout
    if not x.dim() or layout.pending or not layout.splits[dim] or x.shape[dim] < 2 * layout.split_count(dim):
        return run_by_rule(call)
    shape = tuple(layout.split_count(dim) if d == dim else size for d, size in enumerate(x.shape))
    target = layout.with_split(dim, ())
    whole = held_whole(x)
    if whole is not None:
        result: torch.Tensor = func(whole, *call.args[1:], **call.kwargs)
        note_steps(layout, target, shape, result.dtype, str(func))
        return wrap_whole(result, layout)
    scanned = [func(piece, *call.args[1:], **call.kwargs) for piece in x._value.pieces]
    last = tuple(piece.narrow(dim, piece.shape[dim] - 1, 1) for piece in scanned)
    (spec,) = whole_results(call)
    assert spec is not None
    dtype = spec.dtype
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
    total = func(before, dim).narrow(dim, number - 1, 1).to(scanned.dtype)  # torch widens whole numbers that it adds up
    return _COMBINED[func](scanned, total)
