"""Lookups of rows by an index that is split like the table: each device gives the rows it has, and these stay there for now.

x: (v/ep, d), index: (i/ep) -> (i/ep, d)    each row is sent once, when it is needed elsewhere, and straight to where it is
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.index_bounds import check_index
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain, to_plain
from ...engine.op_plan import decided
from ...engine.ragged.rows import RaggedRows, along, evenly, held_rows, ragged, rows_of
from ...engine.ragged.running import on_device, takes_rows
from ...engine.sharded import ShardedTensor, wrap
from ...engine.strategy import BroughtTensor
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...rules.registry import rules
from ...runtime.holding import Pieces, holding
from ...runtime.route import line_of, places_among
from ...runtime.strides import in_order, row_major
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

__all__ = ["are_beside", "indices_of_rows", "looked_up", "sent_evenly", "whole_indices"]

aten = torch.ops.aten

takes_rows.update({aten.index.Tensor, aten.index_select.default})


def indices_of_rows(call: BoundCall) -> list[torch.Tensor]:
    """The indices of a call that takes or adds rows: of the first dim, and of some that follow; none where it does more."""
    if call.has("indices"):
        given = call.optional_list("indices")
        indices = [index for index in given if index is not None]
        if len(indices) < len(given):
            return []
    else:
        indices = [call.tensor("index")] if call.dim("dim") == 0 else []
    are_counted = all(index.dim() == 1 and index.dtype in (torch.int64, torch.int32) for index in indices)
    return indices if are_counted and all(index.shape == indices[0].shape for index in indices) else []


def looked_up(call: BoundCall) -> object:
    """What is looked up, each row where the table has it; NotImplemented where its rule is to say."""
    x, indices = call.tensor("self"), indices_of_rows(call)
    index = indices[0] if indices else None
    if not isinstance(x, ShardedTensor) or not isinstance(index, ShardedTensor) or is_traced() or x.is_meta:
        return NotImplemented
    if (
        len(indices) > x.dim()
        or not are_beside(x._layout, indices)
        or not x.numel()
        or not index.numel()
        or x.mesh != index.mesh
        or x._layout.pending
        or index._layout.pending
    ):
        return NotImplemented
    axes, kept = x._layout.splits[0], index._layout.splits[0]
    waiting = {axis: ReduceOp.SUM for axis in axes if axis not in kept}
    splits = kept, *x._layout.splits[len(indices) :]
    layout = Layout(x.mesh, splits, waiting) if set(kept) <= set(axes) else None
    if layout is None or not axes or (not kept and (rows_of(x) is None or not _gives(call, layout))):
        return NotImplemented
    numbers, *others = whole_indices(call, indices, x.shape)
    table = held_rows(x, 0)
    (spec,) = whole_results(call)
    assert spec is not None
    strides = row_major(spec.shape) if spec.strides is None else spec.strides
    at = along(x.mesh, kept, (axes, table.at[numbers])) if kept else torch.zeros_like(numbers)
    rows = RaggedRows((), layout, spec.shape, 0, at, x.dtype)
    rows.pieces = tuple(in_order(piece, strides) for piece in _taken(table, numbers, others, rows))
    if not waiting:
        return ragged(wrap(rows.pieces, layout, spec.shape, dtype=x.dtype, strides=strides), rows)
    pieces = rows.bring(evenly(x.mesh, kept, len(numbers)), None, str(call))
    if not memory_of(layout).pieces_are_shards:
        return from_plain(pieces[0], layout)
    return wrap(pieces, layout, spec.shape, dtype=x.dtype, strides=strides)


def _gives(call: BoundCall, layout: Layout) -> bool:
    """Whether the rule of a call has it give a result in this layout."""
    return decided(call).outputs == (layout,)


def sent_evenly(layout: Layout, shape: tuple[int, ...], itemsize: int) -> BroughtTensor:
    """What it takes to send rows, if each device has as many for each other: as much as splitting another dim instead."""
    axes = layout.splits[0]
    beside = Layout(layout.mesh, (axes, ()))
    width = max(1, torch.Size(shape[1:]).numel())
    return BroughtTensor(beside, Layout(layout.mesh, ((), axes)), (shape[0], width), itemsize)


def are_beside(layout: Layout, indices: Sequence[torch.Tensor]) -> bool:
    """Whether devices have all of the dims that are looked up beside the first, by indices that all of them can know."""
    return not any(layout.splits[1 : len(indices)]) and not any(
        isinstance(index, ShardedTensor) and (index._layout.pending or index.mesh != layout.mesh) for index in indices
    )


def whole_indices(call: BoundCall, indices: Sequence[torch.Tensor], shape: Sequence[int]) -> list[torch.Tensor]:
    """Indices as every process knows them, on the host, counted from 0; out of range is refused everywhere alike."""
    bounds = rules[call.func].bounds
    assert bounds is not None
    found = []
    for index, size, bound in zip(indices, shape, bounds(call), strict=False):
        numbers = _told(index, str(call)) if isinstance(index, ShardedTensor) else index.cpu().long()
        check_index(numbers, bound)
        found.append(torch.where(numbers < 0, numbers + size, numbers))
    return found


def _told(index: ShardedTensor, op: str) -> torch.Tensor:
    """The whole index on the host; it is kept until it is written to, for the ops after this one and their gradients."""
    if index.is_inference():
        return to_plain(index, op, implicit=True).cpu().long()
    if index._value.told is None or index._value.told[0] != index._version:
        index._value.told = index._version, to_plain(index, op, implicit=True).cpu().long()
    return index._value.told[1]


def _taken(table: RaggedRows, numbers: torch.Tensor, others: Sequence[torch.Tensor], rows: RaggedRows) -> Pieces:
    """What each device has of what is looked up, in order; zeros where another one has the row."""
    if not memory_of(table.layout).pieces_are_shards:
        return tuple(_at(whole, numbers, others) for whole in table.pieces)
    here, places, owners = holding(table.layout), places_among(table.at)[numbers], table.at[numbers]
    result = []
    for slot in holding(rows.layout).slots:
        piece, index = table.pieces[here.piece_of[slot]], on_device(rows, slot) if rows.axes else slice(None)
        own = owners[index] == line_of(table.layout, 0, slot).index(slot)
        if not rows.layout.pending:
            result.append(_at(piece, places[index], [other[index] for other in others]))
            continue
        found = piece.new_zeros((len(own), *piece.shape[1 + len(others) :]))
        found[own.to(piece.device)] = _at(piece, places[index][own], [other[index][own] for other in others])
        result.append(found)
    return tuple(result)


def _at(piece: torch.Tensor, places: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Some rows of what a device has, or of its other dims too what stands at other indices."""
    if not others:
        return piece.index_select(0, places.to(piece.device))
    return piece[tuple(index.to(piece.device) for index in (places, *others))]
