"""Rearranging tensors: results whose every element is one element of a source, in the layout asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ...planning.rearrangement import Part, Rearrangement, Run, Side, rearranged_bytes
from ...runtime.traced import is_open, settled
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from ...watch import comm_log, policy
from ...watch.notes import Note, tell
from ..memory import memory_of
from ..sharded import ShardedTensor
from ..views.copy_views import is_observed
from .movement import from_plain, moved
from .resolving import resolve

__all__ = ["alike", "note_rearrangement", "rearranged", "resolved"]


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

    `whole` is the op on plain tensors, (into,) then sources: where values lie whole, it runs instead. All layouts are on one
    mesh and pending alike. `is_view`: there, what it gives is a view of the one source.
    """
    shape = tuple(shape)

    def plan() -> Rearrangement:
        sides = tuple(Side.of(x._layout, settled(x.shape)) for x in sources)
        return Rearrangement(sides, Side.of(target, settled(shape)), tuple(map(_settled, parts)), tuple(flips))

    if is_observed():
        note_rearrangement(plan(), sources[0].dtype.itemsize, op)
    memory = memory_of(target)
    return memory.rearrange(sources, plan, target, shape, op, whole, fill=fill, into=into, is_view=is_view)


def _settled(part: Part) -> Part:
    runs = [(run.count, run.source, run.target, run.source_step, run.target_step) for run in part.runs]
    return part if not any(map(is_open, runs)) else Part(part.source, tuple(Run(*settled(run)) for run in runs))


def note_rearrangement(plan: Rearrangement, itemsize: int, op: str) -> None:
    """Logs and reports what a rearrangement moves."""
    if not is_observed():
        return
    tell(_RearrangementNote(plan, itemsize, op), ())


@final
@dataclass(frozen=True, slots=True)
class _RearrangementNote(Note):
    """A rearrangement, as it is logged and reported."""

    plan: Rearrangement
    itemsize: int
    op: str

    def tell(self, sizes: tuple[int, ...]) -> None:
        received = rearranged_bytes(self.plan, self.itemsize)
        if not received.total:
            return
        source, target = self.plan.sources[0], self.plan.target
        policy.report_rearrangement(self.op, source.shape, source.layout, target.layout, received.max)
        axes = tuple(a for a in target.layout.mesh.axis_names if a in source.layout.dim_of or a in target.layout.dim_of)
        layouts = source.layout, target.layout
        comm_log.log_step(
            "exchange", axes, *layouts, source.shape, received.max, received.total, self.op, implicit=True
        )


def resolved(x: ShardedTensor, op: str, keeps: frozenset[ReduceOp] = frozenset()) -> ShardedTensor:
    """A tensor with nothing pending but reductions of the kinds that an op keeps."""
    return x if all(kind in keeps for _, kind in x._layout.pending) else resolve(x, op)


def alike(tensors: Sequence[torch.Tensor], op: str) -> list[ShardedTensor]:
    """Tensors on one mesh and pending alike; what is plain, or lies elsewhere, comes in whole."""
    sharded = [x for x in tensors if isinstance(x, ShardedTensor)]
    mesh = max((x._layout.mesh for x in sharded), key=lambda mesh: mesh.num_devices)
    pendings = {x._layout.pending if isinstance(x, ShardedTensor) and x._layout.mesh == mesh else () for x in tensors}
    result = []
    for x in tensors:
        if not isinstance(x, ShardedTensor):
            result.append(from_plain(x, Layout.replicated(mesh, x.dim()), brought_to=op))
        elif x._layout.mesh != mesh:
            result.append(moved(x, Layout.replicated(mesh, x.dim()), op, implicit=True))
        else:
            result.append(x if len(pendings) == 1 else resolved(x, op))
    return result
