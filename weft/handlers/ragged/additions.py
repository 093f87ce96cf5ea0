"""Rows that are added by an index that is split like them: each goes to the device that has what it is added to.

x: (v/ep, d), index: (i/ep), source: (i/ep, d) -> (v/ep, d)    each row is sent once
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.execute import brought
from ...engine.memory import held_whole, memory_of
from ...engine.moves.movement import from_plain
from ...engine.op_plan import decided
from ...engine.ragged.rows import RaggedRows, along, evenly, held_rows, ragged, rows_of
from ...engine.ragged.running import on_device, takes_rows
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...engine.strategy import BroughtTensor, Strategy, cheapest, decided_once
from ...engine.strides.restriding import as_op_gives
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...runtime.route import places_among
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from .lookups import are_beside, indices_of_rows, sent_evenly, whole_indices

__all__ = ["added"]

aten = torch.ops.aten

takes_rows.update({aten.index_put.default, aten.index_add.default, aten.index_add_.default})


def added(call: BoundCall) -> object:
    """What rows are added to, with the rows; NotImplemented where its rule is to say."""
    indices, x = indices_of_rows(call), call.tensor("self")
    index, count = indices[0] if indices else None, len(indices)
    source = call.tensor("values" if call.has("values") else "source")
    given = [each for each in (index, source) if isinstance(each, ShardedTensor)]
    if index is None or len(given) < 2 or is_traced() or x.is_meta or any(each._layout.pending for each in given):
        return NotImplemented
    lookup, rows = given
    if not x.dim():
        return NotImplemented
    if rows.shape != (*lookup.shape, *x.shape[count:]) or rows.dtype != x.dtype or lookup.mesh != rows.mesh:
        return NotImplemented
    axes, kept = rows._layout.splits[0], lookup._layout.splits[0]
    if not axes or not set(kept) <= set(axes) or not x.numel() or not rows.numel():
        return NotImplemented
    if isinstance(x, ShardedTensor) and (x.mesh != rows.mesh or x._layout.pending):
        return NotImplemented
    waiting = {axis: ReduceOp.SUM for axis in axes if axis not in kept}
    layout = Layout(rows.mesh, (kept, *[()] * (count - 1), *rows._layout.splits[1:]), waiting)
    if not are_beside(layout, indices):
        return NotImplemented
    is_split = isinstance(x, ShardedTensor) and x._layout.splits[0] == kept
    if rows_of(rows) is None and not (kept and is_split):
        return NotImplemented
    if not kept:
        if decided(call).outputs != (layout,):
            return NotImplemented
    elif not _is_sent(rows._layout, layout.with_pending(()), tuple(x.shape), tuple(rows.shape), x.dtype.itemsize):
        return NotImplemented
    numbers, *others = whole_indices(call, indices, x.shape)
    if not waiting and not others and _is_new(call, x, numbers):
        return _placed(x, held_rows(rows, 0), numbers)
    return as_op_gives(call, _added(x, layout, held_rows(rows, 0), numbers, others, str(call)), whole=True)


@decided_once
def _is_sent(rows: Layout, target: Layout, shape: tuple[int, ...], given: tuple[int, ...], itemsize: int) -> bool:
    """Whether sending rows is cheaper than to add up on each device what it has, and these sums then."""
    kept = target.splits[0]
    waiting = target.with_split(0, ()).with_pending(dict.fromkeys(kept, ReduceOp.SUM))
    sent = rows.with_split(0, kept)
    return cheapest(
        [
            Strategy("rows sent to what they are added to", True, (sent_evenly(sent, given, itemsize),)),
            Strategy("sum what devices have", False, (BroughtTensor(waiting, target, shape, itemsize),)),
        ]
    )


def _is_new(call: BoundCall, x: torch.Tensor, numbers: torch.Tensor) -> bool:
    """Whether rows are put in another order and no more: torch adds the gradient of a lookup to zeros it has just made."""
    node = torch._C._current_autograd_node()
    if node is None or node.name() not in ("IndexBackward0", "IndexSelectBackward0") or len(numbers) != x.shape[0]:
        return False
    return call.func is aten.index_put.default and bool((torch.bincount(numbers, minlength=len(numbers)) == 1).all())


def _placed(x: torch.Tensor, rows: RaggedRows, numbers: torch.Tensor) -> ShardedTensor:
    """The same rows in another order, each where it is."""
    at = torch.empty_like(rows.at)
    at[numbers] = rows.at
    if memory_of(rows.layout).pieces_are_shards:
        pieces = []
        for piece, slot in zip(rows.pieces, holding(rows.layout).slots, strict=True):
            order = numbers[on_device(rows, slot)].argsort()
            pieces.append(piece.index_select(0, order.to(piece.device)))
    else:
        order = numbers.argsort()
        pieces = [piece.index_select(0, order.to(piece.device)) for piece in rows.pieces]
    placed = RaggedRows(tuple(pieces), rows.layout, x.shape, 0, at, rows.dtype)
    return ragged(wrap(placed.pieces, rows.layout, x.shape, dtype=rows.dtype), placed)


def _added(
    x: torch.Tensor,
    layout: Layout,
    rows: RaggedRows,
    numbers: torch.Tensor,
    others: Sequence[torch.Tensor],
    op: str,
) -> ShardedTensor:
    """What rows are added to in a layout, each on the device that has its place there."""
    owners = evenly(layout.mesh, layout.splits[0], x.shape[0])
    wanted = along(layout.mesh, rows.axes, (layout.splits[0], owners[numbers]), (rows.axes, rows.at))
    # Rows stay where they are for whoever uses them next: those that are added are sent aside.
    sent = RaggedRows(rows.pieces, rows.layout, rows.shape, 0, rows.at, rows.dtype)
    sent.bring(wanted, None, op)
    into, places = as_sharded(brought(x, layout, op, False)), places_among(owners)[numbers]
    if not memory_of(layout).pieces_are_shards:
        # Of this memory alone: a process that has no device of the mesh is not asked for anything.
        base, whole = held_whole(x) if isinstance(x, ShardedTensor) else x, sent.pieces[0]
        assert base is not None
        return from_plain(_with_rows(base, numbers, others, whole), layout)
    pieces = []
    for piece, slot in zip(into._value.pieces, holding(layout).slots, strict=True):
        part = sent.pieces[holding(sent.layout).piece_of[slot]]
        here = on_device(sent, slot)
        pieces.append(_with_rows(piece, places[here], [other[here] for other in others], part))
    return wrap(tuple(pieces), layout, x.shape, dtype=x.dtype)


def _with_rows(
    piece: torch.Tensor, places: torch.Tensor, others: Sequence[torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    """What a device has, with rows added at some indices."""
    if not others:
        return piece.index_add(0, places.to(piece.device), rows)
    return piece.index_put([index.to(piece.device) for index in (places, *others)], rows, accumulate=True)
