"""The cost model: seconds for a step, latency for each phase and bytes over the bandwidth of its slowest link."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ..sharding.mesh import DeviceMesh
from .step import Step
from .topology import Tier, Topology, axis_tier

__all__ = ["DEFAULT", "mesh_tier", "step_tier", "step_time", "steps_time"]

DEFAULT = Topology()
"""Where no topology is given: all devices in one host."""


def steps_time(steps: Sequence[Step], topology: Topology = DEFAULT) -> float:
    """The seconds that steps take one after another."""
    return sum(step_time(step, topology) for step in steps)


def step_time(step: Step, topology: Topology = DEFAULT) -> float:
    """The seconds that a step takes."""
    if not step.bytes_received.max:
        return 0.0
    return topology.link(step_tier(step, topology)).time(step.bytes_received.max, step.phases)


def step_tier(step: Step, topology: Topology) -> Tier:
    """The farthest that devices of a step's groups are apart."""
    if step.source.mesh != step.target.mesh:
        return mesh_tier(step.source.mesh, step.target.mesh, topology)
    return max((axis_tier(step.target.mesh, axis, topology) for axis in step.axes), default=Tier.DEVICE)


@lru_cache(maxsize=1024)
def mesh_tier(source: DeviceMesh, target: DeviceMesh, topology: Topology) -> Tier:
    """The farthest that a device of one mesh is from the nearest of another."""
    if topology.devices_per_host is None:
        return Tier.HOST
    hosts = {device.id // topology.devices_per_host for device in source.devices}
    others = {device.id // topology.devices_per_host for device in target.devices}
    if others <= hosts:
        return Tier.HOST
    if topology.hosts_per_rack is None:
        return Tier.RACK
    racks = {host // topology.hosts_per_rack for host in hosts}
    return Tier.RACK if {host // topology.hosts_per_rack for host in others} <= racks else Tier.FABRIC
