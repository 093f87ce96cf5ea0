"""What moves between two meshes, slot by slot: there, devices have no coordinates in common."""

from __future__ import annotations

from collections.abc import Sequence

from ...caches import cached
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh, Slot
from ..step import Bytes, Load, Step, bytes_of
from .census import Shape, Volume, axis_sizes, everywhere, split_sizes, spread_index
from .pieces import cuts

__all__ = ["combined", "crossing", "received_bytes", "same_slots", "volumes"]


@cached(256)
def same_slots(source: DeviceMesh, target: DeviceMesh) -> tuple[Slot | None, ...]:
    """For each slot of one mesh, the slot of another where the same device stands, if any.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2})
    >>> same_slots(DeviceMesh(mesh.devices[::-1], (2,), ("a",)), mesh)
    (1, 0)
    """
    if source.slot_ids == target.slot_ids:
        return tuple(range(target.num_devices))
    slots = {identity: slot for slot, identity in enumerate(source.slot_ids)}
    return tuple(slots.get(identity) for identity in target.slot_ids)


@cached(256)
def volumes(layout: Layout, shape: Shape) -> tuple[int, ...]:
    """How many elements each slot holds."""
    return tuple(everywhere(layout.mesh, shape, Volume(layout)))


@cached(256)
def crossing(source: Layout, target: Layout, shape: Shape) -> tuple[int, ...]:
    """How many elements each slot of the target's mesh wants and does not hold.

    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 2}), make_mesh({"b": 4})
    >>> crossing(Layout(here, (("a",),)), Layout(there, (("b",),)), (8,))
    (0, 2, 2, 2)
    """
    wanted = volumes(target, shape)
    own = same_slots(source.mesh, target.mesh)
    kept = [0 if slot is None else 1 for slot in own]
    if not any(kept):
        return wanted
    for dim, size in enumerate(shape):
        ours = cuts(size, split_sizes(source, dim))
        theirs = cuts(size, split_sizes(target, dim))
        held = spread_index(axis_sizes(source.mesh), source.splits[dim])
        asked = spread_index(axis_sizes(target.mesh), target.splits[dim])
        for slot, other in enumerate(own):
            if other is not None and kept[slot]:
                (start, stop), (low, high) = ours[held[other]], theirs[asked[slot]]
                kept[slot] *= max(0, min(stop, high) - max(start, low))
    return tuple(want - keep for want, keep in zip(wanted, kept, strict=True))


def combined(parts: Sequence[tuple[DeviceMesh, Sequence[int]]]) -> list[int]:
    """Numbers by slot of one or two meshes, added up by device."""
    first = parts[0][0]
    sums = {mesh: [0] * mesh.num_devices for mesh, _ in parts}
    for mesh, numbers in parts:
        sums[mesh] = [total + number for total, number in zip(sums[mesh], numbers, strict=True)]
    result = sums.pop(first)
    for mesh, numbers in sums.items():
        for slot, number in zip(same_slots(first, mesh), numbers, strict=True):
            if slot is None:
                result.append(number)
            else:
                result[slot] += number
    return result


def received_bytes(steps: Sequence[Step], target: Layout, shape: Shape, itemsize: int) -> Bytes:
    """What devices receive over all steps."""
    moving = [step for step in steps if step.phases]
    if not moving:
        return Bytes(0, 0)
    if len(moving) == 1:
        return moving[0].bytes_received
    if all(step.source.mesh == step.target.mesh == target.mesh for step in moving):
        load: Load = tuple(part for step in moving for part in step.load())
        return bytes_of(target, shape, itemsize, load)
    each = combined([(step.target.mesh, step.received_everywhere()) for step in moving])
    return Bytes(max(each), sum(each))
