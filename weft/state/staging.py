"""Large tensors of a state that go through hosts: replicas there share what enters, and a cable carries each byte once."""

from __future__ import annotations

import math

from ..planning import Plan, Topology, plan_layouts
from ..planning.topology.topology import is_flat
from ..runtime.processes import world
from ..sharding.layout import Layout

__all__ = ["staged_plan"]

LARGE = 4 << 20
"""Bytes from which a tensor is worth a call of its own: smaller ones are packed with others."""


def staged_plan(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, topology: Topology
) -> Plan | None:
    """The plan of a tensor that had better go through hosts, by itself; None: straight, with the others.

    >>> from weft.devices import CPU
    >>> from weft.sharding.mesh import DeviceMesh
    >>> one, two = (DeviceMesh([CPU(first), CPU(first + 1)], (2,), ("x",)) for first in (0, 2))
    >>> split, hosts = Layout(one, (("x",),)), Topology(devices_per_host=2)
    >>> staged_plan(split, Layout(two, ((),)), (LARGE,), 4, hosts).steps[0].described
    'exchange, host by host'
    >>> staged_plan(split, Layout(two, (("x",),)), (LARGE,), 4, hosts)
    """
    if not target.replicated_axes or math.prod(shape) * itemsize < LARGE:
        return None
    if is_flat(topology, source.mesh, target.mesh):
        return None
    if world.asked().devices_per_process > 1:  # a process receives once what its devices have in common anyway
        return None
    plan = plan_layouts(source, target, shape, itemsize, topology=topology)
    return plan if any(step.stages is not None for step in plan.steps) else None
