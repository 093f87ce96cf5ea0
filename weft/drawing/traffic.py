"""`Traffic`: how many bytes go from each slot to each other, where a plan only moves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import final

from ..planning import Plan, receives
from ..planning.moving_steps import AllGather, AllToAll, Exchange, LocalSlice, Permute
from ..sharding.geometry import box_shape

__all__ = ["Traffic", "traffic"]

MOST_SLOTS = 16
"""Meshes up to this size are drawn slot by slot."""

MOVING = (AllGather, AllToAll, Exchange, LocalSlice, Permute)
"""The kinds of step that say which box comes from where; a reduction may go over many paths."""


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes on their way: `rows[source slot][target slot]`; what stays where it is counts as nothing."""

    rows: tuple[tuple[int, ...], ...]

    @property
    def most(self) -> int:
        """The largest number of bytes between two slots."""
        return max((size for row in self.rows for size in row), default=0)


def traffic(plan: Plan) -> Traffic | None:
    """Who sends how much to whom, or None where the plan reduces, moves in several steps, or has too many slots.

    >>> from weft.planning import plan_layouts
    >>> from weft.sharding import make_mesh
    >>> from weft.sharding.layout import Layout
    >>> mesh = make_mesh({"tp": 2})
    >>> traffic(plan_layouts(Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",))), (8, 8), 4)).rows
    ((0, 64), (64, 0))
    """
    moving = [step for step in plan.steps if step.phases]
    sources, targets = plan.source.mesh, plan.target.mesh
    if len(moving) != 1 or max(sources.num_devices, targets.num_devices) > MOST_SLOTS:
        return None
    (step,) = moving
    if not isinstance(step, MOVING) or step.source.mesh != sources or step.target.mesh != targets:
        return None
    rows = [[0] * targets.num_devices for _ in range(sources.num_devices)]
    for slot in range(targets.num_devices):
        for transfer in receives(step.source, step.target, plan.shape, slot, topology=plan.topology):
            if sources.slot_ids[transfer.source_slot] != targets.slot_ids[slot]:
                rows[transfer.source_slot][slot] += prod(box_shape(transfer.box)) * plan.itemsize
    return Traffic(tuple(map(tuple, rows)))
