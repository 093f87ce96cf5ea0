"""What this process stores of a tensor in one layout: the pieces, and where each slot's shard is among them.

Unified memory: one piece of the global shape per combination of pending coordinates; a shard is a view of it.
Separate memories: one piece per distinct shard of the slots that this process owns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch

from ..caches import cached
from ..sharding.geometry import Box, box_at, box_shape
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .machine import Residence, forget_with_residences, residence

__all__ = ["Holding", "Pieces", "holding", "slices"]

Pieces = tuple[torch.Tensor, ...]


class Holding:
    """The pieces of a layout in this process."""

    __slots__ = ("coords", "count", "devices", "layout", "piece_of", "residence", "slots", "unified")

    layout: Layout
    residence: Residence
    unified: bool
    slots: tuple[Slot, ...]
    """For each piece, the first slot that holds it."""
    coords: tuple[tuple[int, ...], ...]
    """For each piece, the mesh coordinates of that slot."""
    piece_of: dict[Slot, int]
    devices: tuple[torch.device, ...]
    count: int

    def __init__(self, layout: Layout) -> None:
        mesh = layout.mesh
        self.layout, self.residence = layout, residence(mesh)
        self.unified = self.residence.unified
        axes = layout.pending_axes if self.unified else (*layout.pending_axes, *layout.split_axes)
        strides = [(mesh.strides[i], mesh.mesh_shape[i]) for i in sorted(mesh.index_of[axis] for axis in axes)]
        first: dict[tuple[object, ...], int] = {}
        slots: list[Slot] = []
        self.piece_of = {}
        for slot in self.residence.owned:
            key = (self.residence.memories[slot], *(slot // stride % size for stride, size in strides))
            if key not in first:
                first[key] = len(slots)
                slots.append(slot)
            self.piece_of[slot] = first[key]
        self.slots = tuple(slots)
        self.coords = tuple(mesh.coords(slot) for slot in slots)
        self.devices = tuple(self.residence.torch_devices[slot] for slot in slots)
        self.count = len(slots)

    def box(self, piece: int, shape: Sequence[int]) -> Box:
        """Which box of the tensor a piece is."""
        if self.unified:
            return tuple((0, size) for size in shape)
        return box_at(self.layout, shape, self.coords[piece])

    def piece_shape(self, piece: int, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a piece of a tensor of this shape."""
        return tuple(shape) if self.unified else box_shape(self.box(piece, shape))

    def shapes(self, shape: Sequence[int]) -> list[tuple[int, ...]]:
        """The shapes of all pieces of a tensor of this shape."""
        return [self.piece_shape(piece, shape) for piece in range(self.count)]

    def empty(self, shape: Sequence[int], dtype: torch.dtype, device: str | None = None) -> Pieces:
        """Memory for all pieces of a tensor of this shape, on their devices or on one that is said."""
        return tuple(
            torch.empty(own, dtype=dtype, device=device or there)
            for own, there in zip(self.shapes(shape), self.devices, strict=True)
        )

    def shaped_whole(self, pieces: Pieces) -> torch.Tensor | None:
        """A piece that has the shape and the strides of the whole, where pieces do."""
        return pieces[0] if self.unified and pieces else None

    def shard(self, pieces: Pieces, shape: Sequence[int], slot: Slot) -> torch.Tensor:
        """What one slot holds."""
        piece = pieces[self.piece_of[slot]]
        if not self.unified:
            return piece
        return piece[slices(box_at(self.layout, shape, self.layout.mesh.coords(slot)))]

    def shards(self, pieces: Pieces, shape: Sequence[int]) -> list[torch.Tensor]:
        """What each owned slot holds, in mesh order; equal shards are one torch tensor."""
        if not self.unified:
            return [pieces[self.piece_of[slot]] for slot in self.residence.owned]
        if not self.layout.split_axes:
            return [pieces[self.piece_of[slot]] for slot in self.residence.owned]
        views: dict[tuple[int, Box], torch.Tensor] = {}
        result = []
        for slot, coords in enumerate(product(*map(range, self.layout.mesh.mesh_shape))):
            key = (self.piece_of[slot], box_at(self.layout, shape, coords))
            if key not in views:
                views[key] = pieces[key[0]][slices(key[1])]
            result.append(views[key])
        return result


def slices(where: Box) -> tuple[slice, ...]:
    """A box as an index."""
    return tuple(slice(start, stop) for start, stop in where)


@cached(65536, cleared_by=forget_with_residences)
def holding(layout: Layout) -> Holding:
    """The pieces of a layout in this process, computed once."""
    return Holding(layout)


def nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    """The bytes of a tensor of this shape."""
    return math.prod(shape) * dtype.itemsize
