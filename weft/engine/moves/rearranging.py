"""Rearranging tensors: results whose every element is one element of a source, in the layout asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...planning.rearrangement import Part, Rearrangement, Side, rearranged_bytes
from ...runtime.holding import holding
from ...runtime.rearranging import rearrange
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from ...watch import comm_log, policy
from ..sharded import ShardedTensor, wrap, wrap_total
from ..total import Contributions, Origin, known_total, part_pieces
from .movement import from_plain, moved
from .resolving import resolve

__all__ = ["alike", "here", "note_rearrangement", "rearranged", "resolved"]


def rearranged(
    sources: Sequence[ShardedTensor],
    target: Layout,
    shape: Sequence[int],
    parts: Sequence[Part],
    op: str,
    whole: Callable[..., torch.Tensor],
    *,
    flips: Sequence[int] = (),
    fill: float | None = None,
    into: ShardedTensor | None = None,
    is_view: bool = False,
) -> ShardedTensor:
    """The result of parts of the sources, and of `fill` or `into` where no part lands.

    `whole` is the op on plain tensors, (into,) then sources: in one memory it runs instead. All layouts are on one mesh and
    pending alike. `is_view`: in one memory, what the op gives is a view of the one source.
    """
    given = [*([] if into is None else [into]), *sources]
    first = given[0]
    unified = holding(target).unified
    if not unified or comm_log.is_logging() or policy.watches():
        plan = Rearrangement(
            tuple(Side.of(x._layout, x.shape) for x in sources), Side.of(target, shape), tuple(parts), tuple(flips)
        )
        note_rearrangement(plan, first.dtype.itemsize, op)
    if unified:
        return here(given, target, whole, is_view=is_view)
    begun = None if into is None else tuple(piece.clone() for piece in into._value.pieces)
    pieces = rearrange([x._value.pieces for x in sources], plan, first.dtype, fill=fill, into=begun, op=op)
    return wrap(pieces, target, tuple(shape), dtype=first.dtype)


def here(
    given: Sequence[ShardedTensor], target: Layout, whole: Callable[..., torch.Tensor], *, is_view: bool
) -> ShardedTensor:
    """What an op gives in one memory: of whole values, or of each contribution where the value is not known whole."""

    def each() -> ShardedTensor:
        pieces = tuple(whole(*(x._value.pieces[k] for x in given)) for k in range(holding(target).count))
        return wrap(pieces, target, pieces[0].shape)

    totals = [known_total(x) for x in given]
    if any(total is None for total in totals):
        if is_view and target.pending:
            part_pieces(given[0])
        return each()
    value = whole(*totals)
    first = given[0]._value.total
    written = first.written if is_view and first is not None else [False]
    return wrap_total(value, target, Contributions(Origin(each, is_view), 0, value, target), written)


def note_rearrangement(plan: Rearrangement, itemsize: int, op: str) -> None:
    """Logs and reports what a rearrangement moves."""
    if not comm_log.is_logging() and not policy.watches():
        return
    received = rearranged_bytes(plan, itemsize)
    if not received.total:
        return
    source, target = plan.sources[0], plan.target
    policy.report_rearrangement(op, source.shape, source.layout, target.layout, received.max)
    axes = tuple(a for a in target.layout.mesh.axis_names if a in source.layout.dim_of or a in target.layout.dim_of)
    comm_log.log_step(
        "exchange", axes, source.layout, target.layout, source.shape, received.max, received.total, op, implicit=True
    )


def resolved(x: ShardedTensor, op: str, keeps: frozenset[ReduceOp] = frozenset()) -> ShardedTensor:
    """A tensor with nothing pending but reductions of the kinds that an op keeps."""
    return x if all(kind in keeps for _, kind in x._layout.pending) else resolve(x, op)


def alike(
    tensors: Sequence[torch.Tensor], op: str, keeps: frozenset[ReduceOp] = frozenset(ReduceOp)
) -> list[ShardedTensor]:
    """Tensors on one mesh and pending alike; what is plain, or lies elsewhere, comes in whole."""
    sharded = [x for x in tensors if isinstance(x, ShardedTensor)]
    mesh = max((x._layout.mesh for x in sharded), key=lambda mesh: mesh.num_devices)
    pendings = {x._layout.pending if isinstance(x, ShardedTensor) and x._layout.mesh == mesh else () for x in tensors}
    kept = len(pendings) == 1 and all(kind in keeps for pending in pendings for _, kind in pending)
    result = []
    for x in tensors:
        if not isinstance(x, ShardedTensor):
            result.append(from_plain(x, Layout.replicated(mesh, x.dim()), brought_to=op))
        elif x._layout.mesh != mesh:
            result.append(moved(x, Layout.replicated(mesh, x.dim()), op, implicit=True))
        else:
            result.append(x if kept else resolved(x, op))
    return result
