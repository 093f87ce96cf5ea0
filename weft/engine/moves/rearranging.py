"""Rearranging tensors: results whose every element is one element of a source, in the layout asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ...planning.rearrangement import OpenRearrangement, Part, Rearrangement, Side, opened, rearranged_bytes
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from ...watch import comm_log, policy
from ...watch.notes import Note, tell
from ..memory import memory_of
from ..sharded import ShardedTensor
from ..views.copy_views import is_observed
from ..views.folded import is_unmade
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

    def plan() -> tuple[OpenRearrangement, Sequence[int]]:
        sides = tuple(Side.of(x._layout, x.shape) for x in sources)
        return opened(Rearrangement(sides, Side.of(target, shape), tuple(parts), tuple(flips)))

    if is_observed():
        for x in sources:
            if is_unmade(x):
                x._value.pieces  # noqa: B018 - what making them moves is said first, in every memory
        found, sizes = plan()
        note_rearrangement(found, sources[0].dtype.itemsize, op, sizes)
    memory = memory_of(target)
    return memory.rearrange(sources, plan, target, shape, op, whole, fill=fill, into=into, is_view=is_view)


def note_rearrangement(plan: OpenRearrangement, itemsize: int, op: str, sizes: Sequence[int] = ()) -> None:
    """Logs and reports what a rearrangement moves; `sizes` are those for which it is not planned yet."""
    if not is_observed():
        return
    if isinstance(plan, Rearrangement):
        plan, sizes = opened(plan)
    tell(_RearrangementNote(plan, itemsize, op), sizes)


@final
@dataclass(frozen=True, slots=True)
class _RearrangementNote(Note):
    """A rearrangement, as it is logged and reported."""

    plan: OpenRearrangement
    itemsize: int
    op: str

    def tell(self, sizes: tuple[int, ...]) -> None:
        plan = self.plan.known(sizes)
        received = rearranged_bytes(plan, self.itemsize)
        if not received.total:
            return
        source, target = plan.sources[0], plan.target
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
