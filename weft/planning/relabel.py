"""Which device should stand where in the target's mesh, so that least moves."""

from __future__ import annotations

from collections.abc import Sequence

from ..sharding.geometry import box, volume
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .boxes.census import Shape, common_volume
from .boxes.transfers import routes

__all__ = ["assigned", "relabeled"]

EXACT_DEVICES = 64
"""Up to so many devices, the assignment is the best there is; beyond, a good one."""


def relabeled(source: Layout, target: Layout, shape: Shape) -> Layout:
    """The target on a mesh of the same devices in the order that keeps most of the source where it is.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> relabeled(Layout(mesh, (("a", "b"),)), Layout(mesh, (("b", "a"),)), (8,)).mesh.devices
    (CPU(0), CPU(2), CPU(1), CPU(3))
    """
    mesh = target.mesh
    held = source.resolved
    if mesh.is_simulated:
        return target  # all slots are one device, and repeats of it cannot be told apart by a new order
    order = _exact(held, target, shape) if mesh.num_devices <= EXACT_DEVICES else _greedy(held, target, shape)
    devices = [mesh.devices[slot] for slot in order]
    return Layout(DeviceMesh(devices, mesh.mesh_shape, mesh.axis_names), target.splits, target.pending)


def _exact(source: Layout, target: Layout, shape: Shape) -> list[int]:
    """For each slot, the old slot whose device it gets: most elements kept, then fewest devices displaced."""
    mesh = target.mesh
    slots = {identity: slot for slot, identity in enumerate(source.mesh.slot_ids)}
    wanted = [box(target, shape, slot) for slot in range(mesh.num_devices)]
    found = [slots.get(identity) for identity in mesh.slot_ids]
    held = [None if slot is None else box(source, shape, slot) for slot in found]
    weight = mesh.num_devices + 1
    kept = [
        [(0 if have is None else common_volume(want, have) * weight) + (i == j) for j, have in enumerate(held)]
        for i, want in enumerate(wanted)
    ]
    return assigned(kept)


def _greedy(source: Layout, target: Layout, shape: Shape) -> list[int]:
    """The same, a slot at a time: the free device that holds most of what it wants."""
    mesh = target.mesh
    slots = {identity: slot for slot, identity in enumerate(mesh.slot_ids)}
    ids = source.mesh.slot_ids
    paths = routes(source, target, shape)
    free = set(range(mesh.num_devices))
    order: list[int | None] = []
    for slot in range(mesh.num_devices):
        pieces = sorted(paths.holders(slot), key=lambda piece: -volume(piece[1]))
        holders = (slots.get(ids[holder]) for where, part in pieces for holder in where)
        chosen = slot if slot in free and _keeps_all(source, target, shape, slot) else None
        if chosen is None:
            chosen = next((holder for holder in holders if holder is not None and holder in free), None)
        if chosen is not None:
            free.discard(chosen)
        order.append(chosen)
    left = iter(sorted(free))
    return [next(left) if chosen is None else chosen for chosen in order]


def _keeps_all(source: Layout, target: Layout, shape: Shape, slot: int) -> bool:
    own = routes(source, target, shape).own_slot(slot)
    wanted = box(target, shape, slot)
    return own is not None and common_volume(wanted, box(source, shape, own)) == volume(wanted)


def assigned(value: Sequence[Sequence[int]]) -> list[int]:
    """For each row the column, each used once, with the largest sum of values (Kuhn and Munkres, in cubic time).

    >>> assigned([[1, 5], [2, 5]])
    [1, 0]
    """
    n = len(value)
    row_price, column_price = [0] * (n + 1), [0] * (n + 1)
    owner, previous = [0] * (n + 1), [0] * (n + 1)
    for row in range(1, n + 1):
        owner[0], column = row, 0
        slack: list[float] = [float("inf")] * (n + 1)
        seen = [False] * (n + 1)
        while owner[column]:
            seen[column] = True
            here, step, following = owner[column], float("inf"), 0
            for j in range(1, n + 1):
                if seen[j]:
                    continue
                reduced = -value[here - 1][j - 1] - row_price[here] - column_price[j]
                if reduced < slack[j]:
                    slack[j], previous[j] = reduced, column
                if slack[j] < step:
                    step, following = slack[j], j
            for j in range(n + 1):
                if seen[j]:
                    row_price[owner[j]] += int(step)
                    column_price[j] -= int(step)
                else:
                    slack[j] -= step
            column = following
        while column:
            owner[column] = owner[previous[column]]
            column = previous[column]
    result = [0] * n
    for column in range(1, n + 1):
        result[owner[column] - 1] = column - 1
    return result
