"""`Passage`: a region of one tensor that becomes a region of another, in other layouts, on other meshes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import final

from ...caches import cached
from ...sharding.geometry import Box, box_at, slots_at, volume
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..boxes.census import Shape, split_sizes
from ..boxes.crossing import same_slots
from ..boxes.pieces import overlapping
from ..boxes.transfers import Transfer, nearest, routes
from ..costs.bounds import lower_bound
from ..moving_steps import Exchange
from ..step import Bytes
from ..topology import Topology

__all__ = ["Passage", "Position", "shifted"]


@final
@dataclass(frozen=True, slots=True)
class Position:
    """Where a region begins in a tensor of this shape and layout.

    >>> from weft.sharding.mesh import make_mesh
    >>> Position(Layout(make_mesh({"tp": 2}), (("tp",),)), (12,), (4,)).start
    (4,)
    """

    layout: Layout
    shape: Shape
    start: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Passage:
    """A region of this shape on its way, with so many bytes an element; every device receives exactly what it lacks.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 2})
    >>> split = Layout(mesh, (("tp",),))
    >>> into_the_end = Passage(Position(split, (4,), (0,)), Position(split, (8,), (4,)), (4,), 4)
    >>> into_the_end.bytes_received, into_the_end.receives(1)[0].box
    (Bytes(max=8, total=8), ((2, 4),))
    """

    source: Position
    target: Position
    shape: Shape
    itemsize: int

    @property
    def is_whole(self) -> bool:
        """Whether a whole tensor becomes a whole tensor."""
        return self.source.shape == self.target.shape == self.shape

    def receives(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes of the region that make up what a slot of the target's mesh holds of it, what it has itself first."""
        if self.is_whole:
            return routes(self.source.layout, self.target.layout, self.shape).receives(slot)
        return _received(self, slot)

    def sends(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes of the region that a slot of the source's mesh gives."""
        if self.is_whole:
            return routes(self.source.layout, self.target.layout, self.shape).sends(slot)
        return _sent(self).get(slot, ())

    def received_everywhere(self) -> tuple[int, ...]:
        """The bytes that each slot of the target's mesh receives."""
        return _loads(self)

    @property
    def bytes_received(self) -> Bytes:
        """What the busiest device receives, and what all do."""
        each = _loads(self)
        return Bytes(max(each), sum(each))

    @property
    def lower_bound(self) -> Bytes:
        """The fewest bytes that could be received."""
        if self.is_whole:
            return lower_bound(self.source.layout, self.target.layout, self.shape, self.itemsize)
        return self.bytes_received  # of a region, each device receives what it lacks and nothing else


def shifted(where: Box, by: tuple[int, ...]) -> Box:
    """A box, moved.

    >>> shifted(((0, 2), (1, 3)), (4, 0))
    ((4, 6), (1, 3))
    """
    return tuple((start + step, stop + step) for (start, stop), step in zip(where, by, strict=True))


@cached(1024)
def _loads(passage: Passage) -> tuple[int, ...]:
    source, target = passage.source.layout, passage.target.layout
    if passage.is_whole:
        return tuple(Exchange(source, target, (), passage.shape, passage.itemsize).received_everywhere())
    own = same_slots(source.mesh, target.mesh)
    return tuple(
        sum(volume(each.box) for each in _received(passage, slot) if each.source_slot != own[slot]) * passage.itemsize
        for slot in range(target.mesh.num_devices)
    )


@cached(4096)
def _received(passage: Passage, slot: Slot) -> tuple[Transfer, ...]:
    """Each piece comes from the slot itself where it holds it, else from one of its nearest holders, dealt out."""
    source, target = passage.source, passage.target
    own = same_slots(source.layout.mesh, target.layout.mesh)[slot]
    held = box_at(target.layout, target.shape, target.layout.mesh.coords(slot))
    wanted = [
        (max(low, start) - start, min(high, start + size) - start)
        for (low, high), start, size in zip(held, target.start, passage.shape, strict=True)
    ]
    per_dim = [
        [
            (coords, (low - start, high - start))
            for coords, (low, high) in overlapping(
                size, split_sizes(source.layout, dim), wanted[dim][0] + start, wanted[dim][1] + start
            )
        ]
        for dim, (size, start) in enumerate(zip(source.shape, source.start, strict=True))
    ]
    found = []
    for met in product(*per_dim):
        holders = _holders(source.layout, tuple(coord for coords, _ in met for coord in coords))
        where = tuple(interval for _, interval in met)
        found.append(Transfer(own if own in holders else _dealt(passage, slot, holders), slot, where))
    return tuple(sorted(found, key=lambda each: (each.source_slot != own, each.source_slot, each.box)))


def _dealt(passage: Passage, slot: Slot, holders: tuple[Slot, ...]) -> Slot:
    near = nearest(Topology(), passage.target.layout.mesh.devices[slot], passage.source.layout.mesh, holders)
    return near[slot % len(near)]


@cached(4096)
def _holders(layout: Layout, piece: tuple[int, ...]) -> tuple[Slot, ...]:
    """The slots that hold a piece, which is named by its coordinates along the axes that split, dim after dim."""
    axes = (layout.mesh.index_of[axis] for axes in layout.splits for axis in axes)
    return tuple(slots_at(layout.mesh, dict(zip(axes, piece, strict=True))))


@cached(256)
def _sent(passage: Passage) -> dict[Slot, tuple[Transfer, ...]]:
    found: dict[Slot, list[Transfer]] = {}
    for slot in range(passage.target.layout.mesh.num_devices):
        for each in _received(passage, slot):
            found.setdefault(each.source_slot, []).append(each)
    return {slot: tuple(transfers) for slot, transfers in found.items()}
