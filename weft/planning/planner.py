"""`plan`: the planner for people, who say mappings and dtypes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..errors import PlanError
from ..sharding.dtype import DType, DTypeLike
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from .plans import Plan, plan_layouts
from .relabel import relabeled
from .topology import Topology
from .topology.current import as_topology

__all__ = ["as_layout", "plan"]


def plan(
    source: DeviceMapping | Layout,
    target: DeviceMapping | Layout,
    shape: Sequence[int],
    dtype: DTypeLike,
    *,
    topology: Topology | str | os.PathLike[str] | None = None,
    memory_limit: int | None = None,
    relabel: bool = False,
) -> Plan:
    """What it takes to move a tensor of this shape and dtype from one mapping to another.

    `topology`: the machine, or its name as `use_topology` takes it; by default the one at hand. `memory_limit`: the bytes that a device may hold at once, source and target included. `relabel`: the order of
    the target's devices is free, and the plan's target is on the mesh of the order that moves least.

    >>> from weft.sharding import NamedMapping, P, make_mesh
    >>> mesh = make_mesh({"dp": 2, "tp": 4})
    >>> moved = plan(NamedMapping(mesh, P("dp", "tp")), NamedMapping(mesh, P("tp", "dp")), (8192, 8192), "float32")
    >>> moved.bytes_received.max == moved.lower_bound.max == 32 << 20
    True
    """
    sizes = _checked_shape(shape)
    before, after = as_layout(source, len(sizes)), as_layout(target, len(sizes))
    if relabel:
        after = relabeled(before, after, sizes)
    if memory_limit is not None and (isinstance(memory_limit, bool) or not isinstance(memory_limit, int)):
        raise TypeError(f"memory_limit is a number of bytes, but got {memory_limit!r}")
    itemsize = DType.of(dtype).itemsize
    machine = as_topology(topology)
    return plan_layouts(before, after, sizes, itemsize, topology=machine, memory_limit=memory_limit)


def as_layout(mapping: DeviceMapping | Layout, rank: int) -> Layout:
    """The layout of a tensor of this rank, from either form.

    >>> from weft.sharding import NamedMapping, P, make_mesh
    >>> str(as_layout(NamedMapping(make_mesh({"tp": 4}), P("tp")), 2))
    '(tp, –)'
    """
    if isinstance(mapping, Layout):
        return mapping
    if isinstance(mapping, DeviceMapping):
        return mapping.layout(rank)
    raise TypeError(f"a plan leads from mapping to mapping, but got {mapping!r}: use NamedMapping(mesh, P(...))")


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise PlanError(f"a plan needs known sizes, but the shape {sizes!r} has {size!r}: give a number for it")
        if size < 0:
            raise PlanError(f"a size is 0 or more, but the shape {sizes!r} has {size}")
    return sizes
