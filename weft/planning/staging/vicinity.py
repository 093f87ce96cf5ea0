"""How far the others are from a device: those of its group, those of its cell, those that give it something."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ...caches import cached
from ...sharding.geometry import Box, box_at
from ...sharding.mesh import DeviceMesh, Slot
from ..boxes.census import axis_sizes, common_volume
from ..step import Step
from ..topology import Tier, Topology
from ..topology.topology import cells
from .link_load import LinkLoad
from .stages import Stages

__all__ = ["by_cell", "evenly", "held_nearby", "load_from"]


def evenly(step: Step, axes: tuple[str, ...], slot: Slot, topology: Topology, received: float) -> LinkLoad:
    """What comes in equal parts from all others of a group."""
    counts = _others(step.target.mesh, axes, slot, topology)
    others = counts.host + counts.rack + counts.fabric
    return counts.times(received / others) if others else LinkLoad()


def _others(mesh: DeviceMesh, axes: tuple[str, ...], slot: Slot, topology: Topology) -> LinkLoad:
    """How many others of a slot's group along some axes are in its host, in its rack, and beyond."""
    host, rack = (_group_in_cell(mesh, axes, slot, topology, tier) for tier in (Tier.HOST, Tier.RACK))
    sizes = axis_sizes(mesh)
    return LinkLoad(host - 1, rack - host, math.prod(sizes[axis] for axis in axes) - rack)


@cached(4096)
def _group_in_cell(mesh: DeviceMesh, axes: tuple[str, ...], slot: Slot, topology: Topology, tier: Tier) -> int:
    """How many of a slot's group along some axes are in its cell, itself included."""
    sizes = axis_sizes(mesh)
    if tier is Tier.RACK and topology.hosts_per_rack is None:
        return math.prod(sizes[axis] for axis in axes)
    fixed = [
        (stride, size)
        for axis, stride, size in zip(mesh.axis_names, mesh.strides, mesh.mesh_shape, strict=True)
        if axis not in axes
    ]
    where = [slot // stride % size for stride, size in fixed]
    beside = _slots_in(mesh, topology, tier)[cells(mesh, topology, tier)[slot]]
    return sum([other // stride % size for stride, size in fixed] == where for other in beside)


def load_from(
    mesh: DeviceMesh,
    slot: Slot,
    given: Iterable[tuple[Slot, int]],
    topology: Topology,
    other: DeviceMesh | None = None,
) -> LinkLoad:
    """Bytes from slots, of another mesh if it is named, by how far these are."""
    from_ = mesh if other is None else other
    hosts, racks = cells(from_, topology, Tier.HOST), cells(from_, topology, Tier.RACK)
    host, rack = cells(mesh, topology, Tier.HOST)[slot], cells(mesh, topology, Tier.RACK)[slot]
    own = mesh.slot_ids[slot]
    sums = [0.0, 0.0, 0.0]
    for source, size in given:
        if from_.slot_ids[source] != own:
            sums[0 if hosts[source] == host else 1 if racks[source] == rack else 2] += size
    return LinkLoad(*sums)


def held_nearby(step: Step, slot: Slot, wanted: Box, topology: Topology, tier: Tier) -> int:
    """How much of a box devices in a slot's cell hold together; contributions to a pending reduction, those of its own."""
    source, mesh = step.source, step.target.mesh
    slots = _slots_in(source.mesh, topology, tier).get(cells(mesh, topology, tier)[slot], ())
    kept: list[int] = []
    if source.mesh == mesh:
        kept = [mesh.index_of[axis] for axis in source.pending_axes]
    here = mesh.coords(slot)
    found = set()
    for other in slots:
        coords = source.mesh.coords(other)
        if all(coords[i] == here[i] for i in kept):
            found.add(box_at(source, step.shape, coords))
    return sum(common_volume(wanted, where) for where in found)


@cached(256)
def _slots_in(mesh: DeviceMesh, topology: Topology, tier: Tier) -> dict[int, tuple[Slot, ...]]:
    """The slots of each cell."""
    found: dict[int, list[Slot]] = {}
    for slot, cell in enumerate(cells(mesh, topology, tier)):
        found.setdefault(cell, []).append(slot)
    return {cell: tuple(slots) for cell, slots in found.items()}


def by_cell(mesh: DeviceMesh, axes: tuple[str, ...], slot: Slot, stages: Stages) -> tuple[int, LinkLoad, LinkLoad]:
    """How many of a group are in a slot's cell, itself included; how far the others there are, and those beyond."""
    inside = _group_in_cell(mesh, axes, slot, stages.topology, stages.tier)
    others = _others(mesh, axes, slot, stages.topology)
    if stages.tier is Tier.HOST:
        return inside, LinkLoad(others.host), LinkLoad(0.0, others.rack, others.fabric)
    return inside, LinkLoad(others.host, others.rack), LinkLoad(0.0, 0.0, others.fabric)
