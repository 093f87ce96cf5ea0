"""Products by groups, `torch._grouped_mm`: rows go to the devices that have their groups, and the matrices of groups stay.

rows (s/ep, k) by (e/ep, k, n) -> (s/ep, n)     each row is sent to where its expert is, and the result lies there
rows (s, k) by (e/ep, k, n) -> (s/ep, n)        every device has all rows, and takes those of its experts
(m, s/ep) by (s/ep, n) -> (e/ep, m, n)          the gradient of the matrices, computed where these are
"""

from __future__ import annotations

import torch

from ...engine.execute import brought, run_by_rule
from ...engine.gradient_target import wanted_layout
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain, to_plain
from ...engine.moves.rearranging import resolved
from ...engine.ragged.groups import Assigned
from ...engine.ragged.rows import RaggedRows, evenly, held_rows, ragged, rows_of
from ...engine.ragged.running import brought_to, picked, takes_rows
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...engine.strides.whole_results import whole_results
from ...rules.call import BoundCall
from ...rules.ops.grouped import grouped_product
from ...rules.registry import Spec
from ...runtime.holding import Pieces, holding
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

aten = torch.ops.aten

takes_rows.add(aten._grouped_mm.default)


@handler(aten._grouped_mm.default, may_be_direct=True)
def _grouped_mm(call: BoundCall) -> object:
    first, second, ends = call.tensor("self"), call.tensor("mat2"), call.optional("offs")
    if ends is None or is_traced() or not all(x.numel() for x in call.tensors):
        return run_by_rule(call)
    (spec,) = whole_results(call)  # what is wrong with a call, torch says
    assert spec is not None
    if first.dim() == second.dim() == 2:
        return _of_groups(call, first, second, ends, spec)
    matrices = second if first.dim() == 2 else first
    layout = matrices._layout if isinstance(matrices, ShardedTensor) else None
    if layout is None or layout.pending or not layout.splits[0]:
        return run_by_rule(call)
    return _by_groups(call, as_sharded(matrices), ends, spec)


def _by_groups(call: BoundCall, matrices: ShardedTensor, ends: torch.Tensor, spec: Spec) -> ShardedTensor:
    """Rows, or columns, times the matrix of their group: the result lies where the matrices do."""
    x, dim = (call.tensor("self"), 0) if call.tensor("mat2") is matrices else (call.tensor("mat2"), 1)
    layout, op = matrices._layout, str(call)
    known = _ends(ends, op)
    groups = Assigned(layout.mesh, layout.splits[0], known, x.shape[dim])
    inner, outer = layout.splits[1:] if dim == 0 else layout.splits[:0:-1]
    rows = _brought_together(x, dim, groups, inner, outer, op)
    splits = (rows.axes, outer) if dim == 0 else (outer, rows.axes)
    made = Layout(layout.mesh, splits, dict.fromkeys(inner, ReduceOp.SUM))

    def product(piece: torch.Tensor, matrix: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        first, second = (piece, matrix) if dim == 0 else (matrix, piece)
        return grouped_product(call.replaced(self=first, mat2=second, offs=own))

    if memory_of(made).pieces_are_shards:
        at, of = holding(rows.layout).piece_of, holding(layout).piece_of
        pieces: Pieces = tuple(
            product(rows.pieces[at[slot]], matrices._value.pieces[of[slot]], groups.ends(rows, slot))
            for slot in holding(made).slots
        )
    else:
        pieces = (product(rows.pieces[0], matrices._value.pieces[0], known.int()),)
    result = RaggedRows(pieces, made, spec.shape, dim, rows.at, spec.dtype, rows.groups)
    if not inner:
        return ragged(wrap(pieces, made, spec.shape, dtype=spec.dtype, strides=spec.strides), result)
    # A sum over parts of a matrix is pending: what comes next resolves it where the layout says.
    pieces = result.bring(evenly(made.mesh, rows.axes, x.shape[dim]), None, op)
    if not memory_of(made).pieces_are_shards:
        return from_plain(pieces[0], made)
    return wrap(pieces, made, spec.shape, dtype=spec.dtype, strides=spec.strides)


def _ends(ends: torch.Tensor, op: str) -> torch.Tensor:
    """Where each group ends among the rows, as every process knows it, on the host."""
    return (to_plain(ends, op, implicit=True) if isinstance(ends, ShardedTensor) else ends).cpu().long()


def _brought_together(
    x: torch.Tensor, dim: int, groups: Assigned, inner: tuple[str, ...], outer: tuple[str, ...], op: str
) -> RaggedRows:
    """The rows of a tensor, each on a device that has its group; their other dim is split as that of the matrices is."""
    axes: tuple[str, ...] = ()
    if isinstance(x, ShardedTensor) and x.mesh == groups.mesh:
        x = resolved(x, op)
        own = set(groups.axes)
        axes = tuple(axis for axis in x._layout.splits[dim] if axis not in (*inner, *outer))
        axes = axes if own <= set(axes) or not own & set(axes) else ()
    need = Layout(groups.mesh, (axes, inner) if dim == 0 else (inner, axes))
    there = as_sharded(brought(x, need, op, False))
    if set(groups.axes) <= set(axes):
        rows = held_rows(there, dim)
        rows.bring(groups.places(axes, rows.at, axes), groups.groups, op)
        return rows
    # The devices along the axes of the groups have the same rows: each takes those of its own groups.
    every = (*axes, *groups.axes)
    have = held_rows(there, dim) if axes else there
    at = groups.places(every, have.at if isinstance(have, RaggedRows) else None, axes)
    return picked(have, dim, RaggedRows((), need.with_split(dim, every), x.shape, dim, at, x.dtype, groups.groups))


def _of_groups(call: BoundCall, first: torch.Tensor, second: torch.Tensor, ends: torch.Tensor, spec: Spec) -> object:
    """The product of columns and rows of each group, where these have been brought together."""
    held = [(x, dim, rows_of(x)) for x, dim in ((first, 1), (second, 0))]
    leaders = [rows for _, dim, rows in held if rows is not None and rows.groups is not None and rows.dim == dim]
    op = str(call)
    together = None if leaders else _as_wanted(first, ends, spec, op)
    leader = together or next(iter(leaders), None)
    if leader is None or leader.groups is None:
        return run_by_rule(call)
    mesh, axes = leader.layout.mesh, leader.axes
    known = _ends(ends, op)
    groups = Assigned(mesh, leader.groups.axes, known, leader.shape[leader.dim])
    if groups.groups.sizes != leader.groups.sizes:
        return run_by_rule(call)
    given = [together if together and x is first else _laid_like(x, dim, leader, op) for x, dim, _ in held]
    left, right = given[0].layout.splits[0], given[1].layout.splits[1]
    if set(left) & set(right):
        return run_by_rule(call)
    waiting = {axis: ReduceOp.SUM for axis in axes if axis not in groups.axes}
    made = Layout(mesh, (groups.axes, left, right), waiting)
    if not memory_of(made).pieces_are_shards:
        one, other = (rows.pieces[0] for rows in given)
        return from_plain(grouped_product(call.replaced(self=one, mat2=other, offs=known.int())), made)
    pieces = []
    for slot in holding(made).slots:
        one, other = (rows.pieces[holding(rows.layout).piece_of[slot]] for rows in given)
        pieces.append(grouped_product(call.replaced(self=one, mat2=other, offs=groups.ends(leader, slot))))
    return wrap(tuple(pieces), made, spec.shape, dtype=spec.dtype, strides=spec.strides)


def _as_wanted(first: torch.Tensor, ends: torch.Tensor, spec: Spec, op: str) -> RaggedRows | None:
    """The columns of the first factor, each where the matrix is whose gradient is computed; None where that is not known."""
    if not isinstance(first, ShardedTensor):
        return None
    turned = (spec.shape[0], spec.shape[2], spec.shape[1])
    wanted = wanted_layout("GroupedMmBackward0", spec.shape, 1) or wanted_layout("GroupedMmBackward0", turned, 1)
    if wanted is None or wanted.mesh != first.mesh or not wanted.splits[0]:
        return None
    groups = Assigned(first.mesh, wanted.splits[0], _ends(ends, op), first.shape[1])
    kept = tuple(axis for axis in first._layout.splits[0] if axis not in wanted.splits[0])
    return _brought_together(first, 1, groups, kept, (), op)


def _laid_like(x: torch.Tensor, dim: int, leader: RaggedRows, op: str) -> RaggedRows:
    """The rows of a tensor, each where the leader has it; other dims stay split as far as axes are free."""
    if isinstance(x, ShardedTensor) and x.mesh == leader.layout.mesh:
        x = resolved(x, op)
        rows = rows_of(x)
        if (
            rows is not None
            and rows.dim == dim
            and set(x._layout.split_axes) <= {*leader.axes, *x._layout.splits[1 - dim]}
        ):
            return brought_to(leader, rows, op)
        other = tuple(axis for axis in x._layout.splits[1 - dim] if axis not in leader.axes)
        is_whole = not x._layout.splits[dim]
    else:
        other, is_whole = (), True
    splits = ((), other) if dim == 0 else (other, ())
    need = Layout(leader.layout.mesh, splits)
    there = as_sharded(brought(x, need if is_whole else need.with_split(dim, leader.axes), op, False))
    if is_whole:
        layout = need.with_split(dim, leader.axes)
        return picked(there, dim, RaggedRows((), layout, x.shape, dim, leader.at, x.dtype, leader.groups))
    rows = held_rows(there, dim)
    rows.bring(leader.at, leader.groups, op)
    return rows
