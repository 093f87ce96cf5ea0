"""`ReduceAcross`: the step that takes pending reductions from mesh to mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...sharding.mesh import Slot
from ...sharding.placements import ReduceOp
from ..reducing_steps import Reduces
from ..step import Bytes, Load, Transition, live_pending
from ..topology import Topology
from .extent import is_wieldy
from .work import AcrossWork, work_between

__all__ = ["ReduceAcross"]

_LINEAR = {ReduceOp.SUM, ReduceOp.AVG}


@final
@dataclass(frozen=True, slots=True)
class ReduceAcross(Reduces):
    """Contributions on one mesh come together where they burden nobody, and whoever wants results on another gets them.

    `work` says who collects and who gets what. Where the target begins a pending reduction, results are multiplied by
    `scale`, and what nobody gives to a device is the element `neutral` there.

    >>> from weft.planning import step_between
    >>> from weft.sharding.layout import Layout
    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 4}), make_mesh({"b": 2})
    >>> step = step_between(Layout(here, ((),), {"a": ReduceOp.SUM}), Layout(there, (("b",),)), (24,), 4)
    >>> step.kind, step.phases, step.bytes_received
    ('reduce_across', 3, Bytes(max=72, total=288))
    """

    topology: Topology | None = None
    """What says which holders are near."""

    kind = "reduce_across"

    @property
    def work(self) -> AcrossWork:
        """Who collects which contributions, and who gets which results."""
        return work_between(self.source, self.target, self.shape, self.topology or Topology())

    @property
    def phases(self) -> int:
        work = self.work
        return 1 + bool(work.sums) + work.chains if any(work.received) else 0

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        source, target = move.source, move.target
        before, after = {op for _, op in live_pending(source)}, {op for _, op in live_pending(target)}
        if source.mesh == target.mesh or not before | after or not is_wieldy(source, target, move.shape):
            return None
        if len(after) > 1 or (len(before) > 1 and not before <= _LINEAR) or (after and before and after != before):
            return None
        return ()

    @property
    def resolved(self) -> tuple[str, ...]:
        """The axes of the source's mesh that hold a pending reduction: those of another mesh are not the same."""
        return tuple(axis for axis, _ in live_pending(self.source))

    @property
    def begun(self) -> tuple[str, ...]:
        """The axes of the target's mesh that hold one afterwards."""
        return tuple(axis for axis, _ in live_pending(self.target))

    def _contributes_once(self, axis: str) -> bool:  # noqa: ARG002 - no axis of the target is one of the source
        return True

    def load(self) -> Load:
        raise NotImplementedError("what is received from mesh to mesh is no product of lengths; it is counted directly")

    def received(self, slot: Slot) -> int:
        work = self.work
        return work.received[work.places.of_target[slot]] * self.itemsize

    def received_everywhere(self) -> list[int]:
        return [self.received(slot) for slot in range(self.target.mesh.num_devices)]

    def _bytes(self) -> Bytes:
        each = self.work.received
        return Bytes(max(each) * self.itemsize, sum(each) * self.itemsize)
