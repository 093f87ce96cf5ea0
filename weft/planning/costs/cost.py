"""The cost model: seconds for steps, from the latency of each hop and the bytes over the bandwidth of the links.

A step is priced as it is carried out: every device receives its parts straight from whoever has them, or, staged, through
the cells of the topology. What it takes is decided by the device whose links have most to carry.

Where all devices share a host, links are alike, and receivers are taken to be balanced: all steps together are priced as if
the device that receives most received its lower bound, which it does wherever a plan can be balanced. So the price of a
movement never exceeds that of a detour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...caches import cached
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..across.reduce_across import ReduceAcross
from ..owners import Reducing
from ..reducing_steps import AllReduce, Reduces
from ..staging.stages import Stages
from ..staging.step_loads import link_loads
from ..step import Begins, Bytes, Step
from ..topology import Tier, Topology, axis_tier, current_topology
from ..topology.topology import cells, is_flat

__all__ = ["DEFAULT", "mesh_tier", "passing_time", "staged", "step_time", "steps_time", "tier_between"]

DEFAULT = Topology()
"""Where no topology is given: all devices in one host."""


def steps_time(steps: Sequence[Step], bound: Bytes, topology: Topology = DEFAULT) -> float:
    """The seconds that steps take one after another, for a movement with this lower bound."""
    moving = [step for step in steps if step.bytes_received.total]
    if not all(_is_flat(step, topology) for step in moving):
        return sum(step_time(step, topology) for step in moving)
    total = sum(step.bytes_received.total for step in moving)
    seconds = 0.0
    for step in moving:
        seconds += _flat_time(step, bound.max * step.bytes_received.total / total, topology)
    return seconds


def _is_flat(step: Step, topology: Topology) -> bool:
    """Whether links are alike, and nothing but them counts: processors that share cores do more for some steps than for others."""
    if topology.processor is not None and not step.target.mesh.is_simulated:
        return False
    return is_flat(topology, step.source.mesh, step.target.mesh)


def _flat_time(step: Step, received: float, topology: Topology) -> float:
    """The seconds of a step between devices that are equally far apart."""
    tier = tier_between(step.source, step.target, step.axes, topology)
    return topology.time(tier, received, step.phases, added=received * _added_share(step))


def _added_share(step: Step) -> float:
    """The part of what devices receive in a step that is added to what they have."""
    if isinstance(step, AllReduce):
        return 0.5
    if not isinstance(step, Reduces):
        return 0.0
    added = (step.contributions - 1) * math.prod(step.shape) * step.itemsize
    return min(1.0, added / step.bytes_received.total)


def passing_time(mesh: DeviceMesh, axes: Sequence[str], size: float, topology: Topology | None = None) -> float:
    """The seconds until every device has passed so many bytes to the next along axes.

    >>> from weft.sharding.mesh import make_mesh
    >>> passing_time(make_mesh({"sp": 4}), ("sp",), 1e6) > passing_time(make_mesh({"sp": 4}), ("sp",), 0) > 0
    True
    """
    links = current_topology() if topology is None else topology
    return links.time(max((axis_tier(mesh, axis, links) for axis in axes), default=Tier.DEVICE), size)


def step_time(step: Step, topology: Topology) -> float:
    """The seconds that one step takes, by the links that have most to carry."""
    if not step.bytes_received.total:
        return 0.0
    if _is_flat(step, topology):
        return _flat_time(step, step.bytes_received.max, topology)
    return sum(load.time(topology) for load in link_loads(step, topology))


def staged(step: Step, topology: Topology) -> Step:
    """The step, going through hosts or racks where that is faster."""
    if not step.bytes_received.total or is_flat(topology, step.source.mesh, step.target.mesh):
        return step
    if not _may_be_staged(step):
        return step
    tiers = [Tier.HOST, Tier.RACK] if _has_racks(topology, step.source.mesh, step.target.mesh) else [Tier.HOST]
    choices = [step, *(replace(step, stages=Stages(topology, tier)) for tier in tiers)]
    return min(choices, key=lambda choice: step_time(choice, topology))


@cached(1024)
def _has_racks(topology: Topology, *meshes: DeviceMesh) -> bool:
    """Whether the devices of some meshes are in several racks."""
    return len({cell for mesh in meshes for cell in cells(mesh, topology, Tier.RACK)}) > 1


def _may_be_staged(step: Step) -> bool:
    """Whether going through cells changes anything: there are replicas to share what enters, or something to reduce."""
    if isinstance(step, ReduceAcross) or (isinstance(step, Begins) and step.begun):
        return False
    return isinstance(step, Reducing) or bool(step.target.replicated_axes)


def tier_between(source: Layout, target: Layout, axes: Sequence[str], topology: Topology) -> Tier:
    """The farthest that devices are apart which move something between two layouts, in groups along axes."""
    if source.mesh != target.mesh:
        return mesh_tier(source.mesh, target.mesh, topology)
    return max((axis_tier(target.mesh, axis, topology) for axis in axes), default=Tier.DEVICE)


@cached(1024)
def mesh_tier(source: DeviceMesh, target: DeviceMesh, topology: Topology) -> Tier:
    """The farthest that a device of one mesh is from the nearest of another."""
    for tier in (Tier.HOST, Tier.RACK):
        if set(cells(target, topology, tier)) <= set(cells(source, topology, tier)):
            return tier
    return Tier.FABRIC
