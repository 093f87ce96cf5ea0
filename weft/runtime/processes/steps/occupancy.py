"""`Occupancy`: which shards of a layout a process stores. Both ends of a transfer work it out alike."""

from __future__ import annotations

from typing import final

from ....caches import cached
from ....planning.boxes.transfers import Transfer
from ....sharding.geometry import Box, within
from ....sharding.layout import Layout
from ....sharding.mesh import DeviceMesh, Slot
from ...holding import holding
from ...machine import forget_with_residences, residence
from ..transport.messages import StoredBox, part

__all__ = ["Occupancy", "most_slots", "occupancy", "order_of", "slots_of", "stored_part"]


@cached(1024, cleared_by=forget_with_residences)
def slots_of(mesh: DeviceMesh) -> dict[int, tuple[Slot, ...]]:
    """The slots of each process that owns some."""
    found: dict[int, list[Slot]] = {}
    for slot, owner in enumerate(residence(mesh).owners):
        found.setdefault(owner, []).append(slot)
    return {owner: tuple(slots) for owner, slots in found.items()}


def most_slots(mesh: DeviceMesh) -> int:
    """How many slots the process with the most of them has."""
    return max(map(len, slots_of(mesh).values()))


@final
class Occupancy:
    """The distinct shards of a layout in one process: what it stores in each memory, once each."""

    def __init__(self, layout: Layout, process: int) -> None:
        mesh = layout.mesh
        axes = sorted(mesh.index_of[axis] for axis in (*layout.split_axes, *layout.pending_axes))
        self._strides = [(mesh.strides[i], mesh.mesh_shape[i]) for i in axes]
        self._memories = residence(mesh).memories
        self._anywhere: dict[tuple[int, ...], Slot] = {}
        self._first: dict[tuple[object, ...], Slot] = {}
        for slot in slots_of(mesh).get(process, ()):
            self._anywhere.setdefault(self._key(slot), slot)
            self._first.setdefault((self._memories[slot], *self._key(slot)), slot)

    def _key(self, slot: Slot) -> tuple[int, ...]:
        return tuple(slot // stride % size for stride, size in self._strides)

    def same_shard(self, slot: Slot) -> Slot | None:
        """The first slot of the process with the shard that some slot of the mesh holds, if there is one."""
        return self._anywhere.get(self._key(slot))

    def is_first(self, slot: Slot) -> bool:
        """Whether a slot of the process is the one that stands for all with the same shard in the same memory."""
        return self._first[self._memories[slot], *self._key(slot)] == slot

    @property
    def slots(self) -> tuple[Slot, ...]:
        """One slot for each shard that the process stores."""
        return tuple(self._first.values())


@cached(65536, cleared_by=forget_with_residences)
def occupancy(layout: Layout, process: int) -> Occupancy:
    """What a process stores of a layout, worked out once."""
    return Occupancy(layout, process)


def order_of(transfer: Transfer) -> tuple[object, ...]:
    """What both ends sort a transfer by."""
    return transfer.source_slot, transfer.target_slot, transfer.box


def stored_part(layout: Layout, shape: tuple[int, ...], slot: Slot, where: Box) -> StoredBox:
    """A box of the tensor in the memory of one of this process's slots."""
    stored = holding(layout)
    piece = stored.piece_of[slot]
    return part(piece, within(where, stored.box(piece, shape)), stored.piece_shape(piece, shape))
