"""Lookups of rows by an index that is split like the table: each device gives the rows it has, and these stay there for now.

x: (v/ep, d), index: (i/ep) -> (i/ep, d)    each row is sent once, when it is needed elsewhere, and straight to where it is
"""

from __future__ import annotations

import torch

from ...engine.index_bounds import check_index
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain, to_plain
from ...engine.op_plan import decided
from ...engine.ragged.rows import RaggedRows, along, evenly, held_rows, ragged, rows_of
from ...engine.ragged.running import on_device, takes_rows
from ...engine.sharded import ShardedTensor, wrap
from ...engine.strategy import Moved
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...rules.registry import rules
from ...runtime.holding import Pieces, holding
from ...runtime.route import line_of, places_among
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

__all__ = ["index_of_rows", "looked_up", "sent_evenly", "whole_index"]

aten = torch.ops.aten

takes_rows.update({aten.index.Tensor, aten.index_select.default})


def index_of_rows(call: BoundCall) -> torch.Tensor | None:
    """The index of a call that takes or adds whole rows by one index of one dim; None where it does more."""
    if call.has("indices"):
        indices = call.optional_list("indices")
        index = indices[0] if len(indices) == 1 else None
    else:
        index = call.tensor("index") if call.dim("dim") == 0 else None
    is_counted = index is not None and index.dim() == 1 and index.dtype in (torch.int64, torch.int32)
    return index if is_counted else None


def looked_up(call: BoundCall) -> object:
    """What is looked up, each row where the table has it; NotImplemented where its rule is to say."""
    x, index = call.tensor("self"), index_of_rows(call)
    if not isinstance(x, ShardedTensor) or not isinstance(index, ShardedTensor) or is_traced() or x.is_meta:
        return NotImplemented
    if (
        not x.dim()
        or not x.numel()
        or not index.numel()
        or x.mesh != index.mesh
        or x._layout.pending
        or index._layout.pending
    ):
        return NotImplemented
    axes, kept = x._layout.splits[0], index._layout.splits[0]
    waiting = {axis: ReduceOp.SUM for axis in axes if axis not in kept}
    layout = x._layout.with_split(0, kept).with_pending(waiting) if set(kept) <= set(axes) else None
    if layout is None or not axes or (not kept and (rows_of(x) is None or not _gives(call, layout))):
        return NotImplemented
    numbers, table = whole_index(call, index, x.shape[0]), held_rows(x, 0)
    (spec,) = whole_results(call)
    assert spec is not None
    at = along(x.mesh, kept, (axes, table.at[numbers])) if kept else torch.zeros_like(numbers)
    rows = RaggedRows((), layout, spec.shape, 0, at, x.dtype)
    rows.pieces = _taken(table, numbers, rows)
    if not waiting:
        return ragged(wrap(rows.pieces, layout, spec.shape, dtype=x.dtype, strides=spec.strides), rows)
    pieces = rows.bring(evenly(x.mesh, kept, len(numbers)), None, str(call))
    if not memory_of(layout).pieces_are_shards:
        return from_plain(pieces[0], layout)
    return wrap(pieces, layout, spec.shape, dtype=x.dtype, strides=spec.strides)


def _gives(call: BoundCall, layout: Layout) -> bool:
    """Whether the rule of a call has it give a result in this layout."""
    return decided(call).outputs == (layout,)


def sent_evenly(layout: Layout, shape: tuple[int, ...], itemsize: int) -> Moved:
    """What it takes to send rows, if each device has as many for each other: as much as splitting another dim instead."""
    axes = layout.splits[0]
    beside = Layout(layout.mesh, (axes, ()))
    width = max(1, torch.Size(shape[1:]).numel())
    return Moved(beside, Layout(layout.mesh, ((), axes)), (shape[0], width), itemsize)


def whole_index(call: BoundCall, index: ShardedTensor, size: int) -> torch.Tensor:
    """An index as every process knows it, on the host, counted from 0; out of range is refused everywhere alike."""
    numbers = _told(index, str(call))
    bounds = rules[call.func].bounds
    assert bounds is not None
    check_index(numbers, bounds(call)[0])
    return torch.where(numbers < 0, numbers + size, numbers)


def _told(index: ShardedTensor, op: str) -> torch.Tensor:
    """The whole index on the host; it is kept until it is written to, for the ops after this one and their gradients."""
    if index.is_inference():
        return to_plain(index, op, implicit=True).cpu().long()
    if index._value.told is None or index._value.told[0] != index._version:
        index._value.told = index._version, to_plain(index, op, implicit=True).cpu().long()
    return index._value.told[1]


def _taken(table: RaggedRows, numbers: torch.Tensor, rows: RaggedRows) -> Pieces:
    """What each device has of what is looked up, in order; zeros where another one has the row."""
    if not memory_of(table.layout).pieces_are_shards:
        return tuple(whole.index_select(0, numbers.to(whole.device)) for whole in table.pieces)
    here, places, owners = holding(table.layout), places_among(table.at)[numbers], table.at[numbers]
    result = []
    for slot in holding(rows.layout).slots:
        piece, index = table.pieces[here.piece_of[slot]], on_device(rows, slot) if rows.axes else slice(None)
        own = owners[index] == line_of(table.layout, 0, slot).index(slot)
        if not rows.layout.pending:
            result.append(piece.index_select(0, places[index].to(piece.device)))
            continue
        found = piece.new_zeros((len(own), *piece.shape[1:]))
        found[own.to(piece.device)] = piece.index_select(0, places[index][own].to(piece.device))
        result.append(found)
    return tuple(result)
