"""`Cell`: a box that no cut of either layout divides, who holds contributions to it and who wants it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import final

from ...devices import Device
from ...sharding.geometry import Box
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..boxes.census import Shape, axis_sizes, split_sizes, spread_index
from ..boxes.crossing import same_slots
from ..boxes.pieces import meetings

__all__ = ["Cell", "Holders", "Place", "Places", "cell_count", "cells_between"]

Place = int
"""A device of either mesh: those of the source's first, in order, then those that only the target's has."""


@final
class Holders:
    """The slots of the source that hold each contribution to a box; cells of one piece share them.

    >>> Holders(((0, 2), (1, 3))).which
    {0: 0, 2: 0, 1: 1, 3: 1}
    """

    __slots__ = ("alone", "each", "which")

    def __init__(self, each: tuple[tuple[Slot, ...], ...]) -> None:
        self.each = each
        self.which: dict[Place, int] = {slot: number for number, slots in enumerate(each) for slot in slots}
        """Which contribution each holder has. A slot of the source is the place of the same number."""
        self.alone = tuple(self.which) if len(self.which) == len(each) else None
        """The holder of each contribution, where there is only one."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A box, who holds contributions to it, and the slots that want it: by their coordinate along pending axes.

    Slots of one row of `wanted` are replicas: all of them get the same.
    """

    box: Box
    holders: Holders
    wanted: tuple[tuple[Slot, ...], ...]


@final
class Places:
    """The devices of two meshes, each once.

    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 2}), make_mesh({"b": 3})
    >>> places = Places(Layout(here, ()), Layout(there, ()))
    >>> places.count, places.of_source, places.of_target
    (3, (0, 1), (0, 1, 2))
    """

    def __init__(self, source: Layout, target: Layout) -> None:
        self.of_source: tuple[Place, ...] = tuple(range(source.mesh.num_devices))
        found: list[Place] = []
        self.count = len(self.of_source)
        for slot in same_slots(source.mesh, target.mesh):
            found.append(self.count if slot is None else slot)
            self.count += slot is None
        self.of_target: tuple[Place, ...] = tuple(found)
        of_target = zip(self.of_target, target.mesh.devices, strict=True)
        by_place = dict(enumerate(source.mesh.devices)) | dict(of_target)
        self.devices: tuple[Device, ...] = tuple(by_place[place] for place in range(self.count))

    @cached_property
    def target_slots(self) -> dict[Place, Slot]:
        """The slots of the target's mesh, by place."""
        return {place: slot for slot, place in enumerate(self.of_target)}


def cell_count(source: Layout, target: Layout, shape: Shape) -> int:
    """How many cells there are at most."""
    count = 1
    for dim in range(len(shape)):
        count *= source.split_count(dim) + target.split_count(dim) - 1
    return count


def cells_between(source: Layout, target: Layout, shape: Shape) -> Iterator[Cell]:
    """The cells of two layouts, in row-major order.

    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 2}), make_mesh({"b": 3})
    >>> [cell.box for cell in cells_between(Layout(here, (("a",),)), Layout(there, (("b",),)), (6,))]
    [((0, 2),), ((2, 3),), ((3, 4),), ((4, 6),)]
    """
    holders = {piece: Holders(each) for piece, each in _by_piece(source, len(shape)).items()}
    wanted = _by_piece(target, len(shape))
    per_dim = [meetings(size, split_sizes(source, dim), split_sizes(target, dim)) for dim, size in enumerate(shape)]
    for meeting in product(*per_dim):
        here, there = tuple(i for i, _, _ in meeting), tuple(j for _, j, _ in meeting)
        yield Cell(tuple(interval for _, _, interval in meeting), holders[here], wanted[there])


def _by_piece(layout: Layout, rank: int) -> dict[tuple[int, ...], tuple[tuple[Slot, ...], ...]]:
    """The slots of each piece of a layout, by their coordinate along the pending axes."""
    sizes = axis_sizes(layout.mesh)
    pieces = [spread_index(sizes, layout.splits[dim]) for dim in range(rank)]
    which = spread_index(sizes, layout.pending_axes)
    found: dict[tuple[int, ...], dict[int, list[Slot]]] = {}
    for slot in range(layout.mesh.num_devices):
        rows = found.setdefault(tuple(piece[slot] for piece in pieces), {})
        rows.setdefault(which[slot], []).append(slot)
    return {piece: tuple(tuple(rows[row]) for row in sorted(rows)) for piece, rows in found.items()}
