"""Lower bounds: the fewest bytes that devices must receive, whoever plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations

from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..across.extent import is_small
from ..across.work import least_received
from ..boxes.census import HeldOverlap, Shape, Volume, axis_sizes, census
from ..moving_steps import Exchange
from ..step import Bytes, bytes_of, live_pending

__all__ = ["kept_choices", "largest", "lower_bound", "total_bound"]


def lower_bound(source: Layout, target: Layout, shape: Shape, itemsize: int) -> Bytes:
    """The fewest bytes for the device that receives most, and for all together.

    Without pending reductions, a device must receive what it wants and does not hold. With them, an element
    takes (contributions − 1) + targets − [1 if a target holds a contribution].

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> lower_bound(Layout(mesh, (("tp",),)), Layout(mesh, ((),)), (8,), 4)
    Bytes(max=24, total=96)
    """
    if source.mesh != target.mesh:
        return _across(source, target, shape, itemsize)
    if not live_pending(source) and not live_pending(target):
        return bytes_of(target, shape, itemsize, ((1, Volume(target)), (-1, HeldOverlap(source, target))))
    total = min(total_bound(source, target, shape, kept) for kept in kept_choices(source, target))
    most = -(-total // source.mesh.num_devices)
    if not live_pending(target):  # every device misses a contribution to everything that it wants
        most = max(most, math.prod(largest(target, shape)))
    return Bytes(most * itemsize, total * itemsize)


def kept_choices(source: Layout, target: Layout) -> Iterator[tuple[str, ...]]:
    """The sets of reductions, pending before and after, whose contributions a plan may move as they are; all first."""
    after = dict(live_pending(target))
    both = [axis for axis, op in live_pending(source) if after.get(axis) is op]
    for count in range(len(both), -1, -1):
        yield from combinations(both, count)


def total_bound(source: Layout, target: Layout, shape: Shape, kept: tuple[str, ...]) -> int:
    """The fewest elements that all devices receive when some pending reductions are moved as they are."""
    mesh, numel = source.mesh, math.prod(shape)
    contributions = _count(mesh, [axis for axis, _ in live_pending(source) if axis not in kept])
    wanted = _count(mesh, target.replicated_axes)
    if contributions > 1:
        held = 1
    else:
        held = _count(mesh, [axis for axis in target.replicated_axes if axis not in source.dim_of])
    return _count(mesh, kept) * ((contributions - 1 + wanted) * numel - held * _agreeing(source, target, shape))


def _agreeing(source: Layout, target: Layout, shape: Shape) -> int:
    """How many elements have a target that holds them: their coordinates agree along axes that split both layouts."""
    mesh = source.mesh
    classes = census(mesh, shape, [HeldOverlap(source, target)])
    neither = [axis for axis in mesh.axis_names if axis not in source.dim_of and axis not in target.dim_of]
    return sum(size * count for (size,), count in classes.items()) // _count(mesh, neither)


def _across(source: Layout, target: Layout, shape: Shape, itemsize: int) -> Bytes:
    """Between meshes. With pending reductions, what the busiest device receives in plans that move the least in all."""
    if (live_pending(source) or live_pending(target)) and is_small(source, target, shape):
        least = least_received(source, target, shape)
        return Bytes(least.max * itemsize, least.total * itemsize)
    return _across_at_large(source, target, shape, itemsize)


def _across_at_large(source: Layout, target: Layout, shape: Shape, itemsize: int) -> Bytes:
    """A bound that may be too low where meshes share devices and something is pending."""
    moved = Exchange(source.resolved, target.resolved, (), shape, itemsize).bytes_received
    if not source.pending and not target.pending:
        return moved
    numel = math.prod(shape)
    contributions = _count(source.mesh, source.pending_axes)
    wanted = sum(size * count for (size,), count in census(target.mesh, shape, [Volume(target)]).items())
    held = wanted - moved.total // itemsize
    if (
        contributions > 1
    ):  # then one target of an element may hold a contribution, and the others gain nothing by theirs
        held = min(held, numel)
    total = max(0, (contributions - 1) * numel + wanted // _count(target.mesh, target.pending_axes) - held)
    most = -(-total // len({*source.mesh.slot_ids, *target.mesh.slot_ids}))
    if contributions > 1 and not live_pending(target):  # every device misses a contribution to everything that it wants
        most = max(most, math.prod(largest(target, shape)))
    return Bytes(most * itemsize, max(total, most) * itemsize)


def largest(layout: Layout, shape: Shape) -> list[int]:
    """The shape at the first coordinates, where balanced splits are largest."""
    sizes = axis_sizes(layout.mesh)
    largest = []
    for size, axes in zip(shape, layout.splits, strict=True):
        for axis in axes:
            size = -(-size // sizes[axis])
        largest.append(size)
    return largest


def _count(mesh: DeviceMesh, axes: tuple[str, ...] | list[str]) -> int:
    sizes = axis_sizes(mesh)
    return math.prod(sizes[axis] for axis in axes)
