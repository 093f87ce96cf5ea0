"""The cost model: seconds for steps, from the latency of each phase and the bytes over the bandwidth of the link.

Receivers are taken to be balanced: all steps together are priced as if the device that receives most received its
lower bound, which it does wherever a plan can be balanced. So the price of a movement never exceeds that of a detour.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..caches import cached
from ..sharding.mesh import DeviceMesh
from .step import Bytes, Step
from .topology import Tier, Topology, axis_tier

__all__ = ["DEFAULT", "mesh_tier", "passing_time", "step_tier", "steps_time"]

DEFAULT = Topology()
"""Where no topology is given: all devices in one host."""


def steps_time(steps: Sequence[Step], bound: Bytes, topology: Topology = DEFAULT) -> float:
    """The seconds that steps take one after another, for a movement with this lower bound."""
    moving = [step for step in steps if step.bytes_received.total]
    total = sum(step.bytes_received.total for step in moving)
    seconds = 0.0
    for step in moving:
        link = topology.link(step_tier(step, topology))
        seconds += link.time(bound.max * step.bytes_received.total / total, step.phases)
    return seconds


def passing_time(mesh: DeviceMesh, axes: Sequence[str], size: float, topology: Topology = DEFAULT) -> float:
    """The seconds until every device has passed so many bytes to the next along axes.

    >>> from weft.sharding.mesh import make_mesh
    >>> passing_time(make_mesh({"sp": 4}), ("sp",), 1e6) > passing_time(make_mesh({"sp": 4}), ("sp",), 0) > 0
    True
    """
    tier = max((axis_tier(mesh, axis, topology) for axis in axes), default=Tier.DEVICE)
    return topology.link(tier).time(size)


def step_tier(step: Step, topology: Topology) -> Tier:
    """The farthest that devices of a step's groups are apart."""
    if step.source.mesh != step.target.mesh:
        return mesh_tier(step.source.mesh, step.target.mesh, topology)
    return max((axis_tier(step.target.mesh, axis, topology) for axis in step.axes), default=Tier.DEVICE)


@cached(1024)
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
