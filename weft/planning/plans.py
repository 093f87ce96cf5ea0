"""`Plan`: the steps from one layout to another, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from ..caches import BoundedCache
from ..devices import Device
from ..errors import PlanError
from ..sharding.geometry import Interval
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .boxes.census import Shape
from .boxes.crossing import combined, received_bytes, volumes
from .costs.bounds import largest, lower_bound
from .costs.cost import steps_time
from .parts import Parts, whole_dims
from .search import find_steps
from .step import Bytes, Step, dual
from .steps import LocalSlice
from .text import plan_text
from .topology import Topology, current_topology

__all__ = ["Plan", "move_cost", "plan_layouts"]


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What moves from one layout to another: the steps, the bytes, the memory and the time.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> plan = plan_layouts(Layout(mesh, (("tp",),)), Layout(mesh, ((),)), (1024,), 4)
    >>> [step.kind for step in plan.steps], plan.bytes_received, plan.lower_bound
    (['all_gather'], Bytes(max=3072, total=12288), Bytes(max=3072, total=12288))
    """

    source: Layout
    target: Layout
    shape: Shape
    itemsize: int
    steps: tuple[Step, ...]
    bytes_received: Bytes
    lower_bound: Bytes
    peak_memory: int
    estimated_time: float
    topology: Topology
    parts: Parts | None = None
    """In which parts the tensor is moved, one after another, so that each step fits; None: all at once."""

    def part_plans(self) -> list[tuple[Interval, Plan]]:
        """The plan of each part, where there are several.

        >>> from weft.sharding.mesh import make_mesh
        >>> from weft.sharding.placements import ReduceOp
        >>> mesh = make_mesh({"a": 4, "b": 2})
        >>> source, target = Layout(mesh, ((), ()), {"a": ReduceOp.SUM}), Layout(mesh, ((), ()))
        >>> plan = plan_layouts(source, target, (64, 64), 4, memory_limit=34_000)
        >>> plan.parts, plan.part_plans()[1][0]
        (Parts(dim=1, count=32), (2, 4))
        """
        if self.parts is None:
            return []
        return [(where, self._part(self.parts.shape(self.shape, where))) for where in self.parts.intervals(self.shape)]

    def _part(self, shape: Shape) -> Plan:
        return plan_layouts(self.source, self.target, shape, self.itemsize, topology=self.topology)

    def received(self, slot: Slot) -> int:
        """The bytes that a slot of the target's mesh receives.

        >>> from weft.sharding.mesh import make_mesh
        >>> mesh = make_mesh({"tp": 4})
        >>> plan_layouts(Layout(mesh, (("tp",),)), Layout(mesh, ((),)), (6,), 1).received(3)
        5
        """
        if self.parts is not None:
            return sum(part.received(slot) for _, part in self.part_plans())
        mesh = self.target.mesh
        return sum(
            step.received(slot) if step.target.mesh is mesh else _received(step, mesh.slot_ids[slot])
            for step in self.steps
        )

    def transpose(self) -> Plan:
        """The plan for gradients: from the dual of the target to the dual of the source.

        >>> from weft.sharding.mesh import make_mesh
        >>> mesh = make_mesh({"tp": 4})
        >>> gather = plan_layouts(Layout(mesh, (("tp",),)), Layout(mesh, ((),)), (1024,), 4)
        >>> [step.kind for step in gather.transpose().steps]
        ['reduce_scatter']
        """
        return plan_layouts(dual(self.target), dual(self.source), self.shape, self.itemsize, topology=self.topology)

    def __str__(self) -> str:
        return plan_text(self)

    def to_dict(self) -> dict[str, object]:
        """The plan in words and numbers that JSON has."""
        return {
            "source": {"mesh": self.source.mesh.shape, "layout": str(self.source)},
            "target": {"mesh": self.target.mesh.shape, "layout": str(self.target)},
            "shape": list(self.shape),
            "itemsize": self.itemsize,
            "steps": [step.to_dict() for step in self.steps],
            "bytes_received": {"max": self.bytes_received.max, "total": self.bytes_received.total},
            "lower_bound": {"max": self.lower_bound.max, "total": self.lower_bound.total},
            "peak_memory": self.peak_memory,
            "estimated_time": self.estimated_time,
            **({} if self.parts is None else {"parts": {"dim": self.parts.dim, "count": self.parts.count}}),
        }


_Key = tuple[Layout, Layout, Shape, int, Topology, int | None]
_cache = BoundedCache[_Key, Plan](16384)


def plan_layouts(
    source: Layout,
    target: Layout,
    shape: Shape,
    itemsize: int,
    *,
    topology: Topology | None = None,
    memory_limit: int | None = None,
) -> Plan:
    """The plan from one layout to another of a tensor of this shape, by default on this machine; plans are remembered.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> rows, columns = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",)))
    >>> plan_layouts(rows, columns, (8, 8), 4) is plan_layouts(rows, columns, (8, 8), 4)
    True
    """
    topology = topology or current_topology()
    key = (source, target, shape, itemsize, topology, memory_limit)
    plan = _cache.get(key)
    if plan is None:
        plan = _made(source, target, tuple(shape), itemsize, topology, memory_limit)
        _cache[key] = plan
    return plan


def move_cost(source: Layout, target: Layout, shape: Shape, itemsize: int) -> float:
    """The seconds that a movement takes by the cost model.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> move_cost(Layout(mesh, ((),)), Layout(mesh, (("tp",),)), (1024,), 4)
    0.0
    """
    return plan_layouts(source, target, shape, itemsize).estimated_time


def _made(
    source: Layout, target: Layout, shape: Shape, itemsize: int, topology: Topology, memory_limit: int | None
) -> Plan:
    if not source.rank == target.rank == len(shape):
        raise PlanError(
            f"a plan needs layouts of the tensor's rank: the shape {shape} has {len(shape)} dims, "
            f"but the source {source} has {source.rank} and the target {target} has {target.rank}"
        )
    bound = lower_bound(source, target, shape, itemsize)
    plan = _in_steps(source, target, shape, itemsize, topology, bound, frugal=False)
    if memory_limit is None or plan.peak_memory <= memory_limit:
        return plan
    for part in _in_parts(plan):
        if part.peak_memory <= memory_limit:
            return part
    plan = _in_steps(source, target, shape, itemsize, topology, bound, frugal=True)
    if plan.peak_memory > memory_limit:
        raise PlanError(_too_large(source, target, shape, itemsize, plan.peak_memory, memory_limit))
    return plan


def _in_steps(
    source: Layout, target: Layout, shape: Shape, itemsize: int, topology: Topology, bound: Bytes, *, frugal: bool
) -> Plan:
    steps = find_steps(source, target, shape, itemsize, bound, topology, frugal=frugal)
    peak = peak_memory(steps, source, shape, itemsize)
    received = received_bytes(steps, target, shape, itemsize)
    seconds = steps_time(steps, bound, topology)
    return Plan(source, target, shape, itemsize, steps, received, bound, peak, seconds, topology)


def _in_parts(whole: Plan) -> Iterator[Plan]:
    """The same plan, for ever smaller parts of the tensor; each is put into its place in the target when it is there."""
    source, target, shape = whole.source, whole.target, whole.shape
    dims = whole_dims(source, whole.steps)
    if not dims or len(whole.steps) < 2:
        return
    dim = max(dims, key=lambda dim: shape[dim])
    ends = _together([source, target], shape) * whole.itemsize
    count = 2
    while count <= shape[dim]:
        parts = Parts(dim, count)
        plans = [part for _, part in replace(whole, parts=parts).part_plans()]
        yield replace(
            whole,
            bytes_received=Bytes(sum(p.bytes_received.max for p in plans), sum(p.bytes_received.total for p in plans)),
            peak_memory=ends + max(part.peak_memory for part in plans),
            estimated_time=sum(part.estimated_time for part in plans),
            parts=parts,
        )
        count *= 2


def _too_large(source: Layout, target: Layout, shape: Shape, itemsize: int, peak: int, limit: int) -> str:
    held = math.prod(largest(source, shape)) * itemsize
    wanted = math.prod(largest(target, shape)) * itemsize
    return (
        f"no plan from {source} to {target} of a tensor of shape {shape} fits in {limit:,} bytes a device: "
        f"it needs {peak:,} (the source {held:,}, the target {wanted:,}). "
        f"Raise memory_limit to {peak:,}, or split the source or the target over more devices"
    )


def peak_memory(steps: Sequence[Step], source: Layout, shape: Shape, itemsize: int) -> int:
    """The most that a device holds at once: the source, which lives on, and what a step reads and writes."""
    moments: list[list[Layout]] = [[source]]
    reads: list[Layout] = []
    for step in steps:
        if isinstance(step, LocalSlice):
            continue
        moments.append([source, *reads, step.target])
        reads = [step.target]
    return max(_together(layouts, shape) for layouts in moments) * itemsize


def _together(layouts: Sequence[Layout], shape: Shape) -> int:
    """What the fullest device holds of several layouts; on one mesh, that is the first."""
    if len({layout.mesh for layout in layouts}) == 1:
        return sum(math.prod(largest(layout, shape)) for layout in layouts)
    return max(combined([(layout.mesh, volumes(layout, shape)) for layout in layouts]))


def _received(step: Step, identity: tuple[Device, int]) -> int:
    slots = step.target.mesh.slot_ids
    return step.received(slots.index(identity)) if identity in slots else 0
