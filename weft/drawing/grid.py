"""`Grid`: two dims of a tensor, cut as its layout cuts them, with the slots that hold each part."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import final

from ..sharding.geometry import Box, Interval, interval, slots_at
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh, Slot

__all__ = ["DrawnPart", "Grid", "Palette", "drawn_dims", "grid_at", "grids", "slot_name"]

MOST_CELLS = 16
"""So many pieces along a dim are drawn; the rest is dots."""
MOST_GRIDS = 8
"""So many grids are drawn of a tensor that is split along more than two dims."""
MOST_SLOTS = 8
"""So many slots are named in a cell."""


@final
@dataclass(frozen=True, slots=True)
class DrawnPart:
    """One part of a tensor, and the slots that hold it: one row of replicas for each contribution to it."""

    box: Box
    holders: tuple[tuple[Slot, ...], ...]

    def text(self, mesh: DeviceMesh) -> str:
        """The names of the holders, contributions with a plus between.

        >>> from weft.sharding import make_mesh
        >>> DrawnPart(((0, 4),), ((0, 2), (1, 3))).text(make_mesh({"a": 4}))
        '0 2 + 1 3'
        """
        rows = [" ".join(slot_name(mesh, slot) for slot in slots[:MOST_SLOTS]) for slots in self.holders[:MOST_SLOTS]]
        rows = [f"{row} …" if len(slots) > MOST_SLOTS else row for row, slots in zip(rows, self.holders, strict=False)]
        return " + ".join([*rows, *["…"] * (len(self.holders) > MOST_SLOTS)])


@final
@dataclass(frozen=True, slots=True)
class Grid:
    """The parts of at most two dims at one piece of each other dim; `cut_rows` and `cut_columns` say what is left out."""

    layout: Layout
    title: str
    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]
    cells: tuple[tuple[DrawnPart, ...], ...]
    cut_rows: bool
    cut_columns: bool


@final
@dataclass(frozen=True, slots=True)
class Palette:
    """A colour for each device of some meshes: the same device has the same colour in each.

    >>> Palette(4).color(0), Palette(4).color(2)
    ('#f5b8b8', '#b8f5f5')
    """

    total: int

    @classmethod
    def of(cls, *layouts: Layout) -> Palette:
        """One that tells the devices of these layouts apart."""
        return cls(1 + max(_number(layout.mesh, slot) for layout in layouts for slot in range(layout.mesh.num_devices)))

    def color(self, number: int) -> str:
        """The colour of the device of this number, light enough for black text."""
        red, green, blue = colorsys.hls_to_rgb(number % self.total / self.total, 0.84, 0.75)
        return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"

    def cell(self, mesh: DeviceMesh, cell: DrawnPart) -> str:
        """The colour of a cell: that of its first holder."""
        return self.color(_number(mesh, cell.holders[0][0]))


def slot_name(mesh: DeviceMesh, slot: Slot) -> str:
    """What stands for a slot in a drawing: its device's number, or its device where kinds are mixed.

    >>> from weft.devices import CPU
    >>> slot_name(DeviceMesh([CPU(4), CPU(5)], (2,), ("tp",)), 1)
    '5'
    """
    kinds = {type(device) for device in (mesh.devices[0], mesh.devices[-1], mesh.devices[slot])}
    return str(_number(mesh, slot)) if len(kinds) == 1 else str(mesh.devices[slot])


def drawn_dims(*layouts: Layout) -> tuple[int, ...]:
    """The dims that rows and columns stand for: the last two that are split, else also the last that are not.

    >>> from weft.sharding import make_mesh
    >>> drawn_dims(Layout(make_mesh({"a": 2}), ((), ("a",), (), ())))
    (1, 3)
    """
    rank = layouts[0].rank
    split = [dim for dim in range(rank) if any(layout.splits[dim] for layout in layouts)]
    whole = [dim for dim in range(rank) if dim not in split]
    return tuple(sorted((whole + split)[-2:]))


def grids(layout: Layout, shape: Sequence[int], dims: Sequence[int]) -> tuple[list[Grid], int]:
    """One grid of `dims` for each piece of the other dims, and how many of them are left out.

    >>> from weft.sharding import make_mesh
    >>> found, left_out = grids(Layout(make_mesh({"a": 2, "b": 2}), (("a",), ("b",), ())), (4, 6, 8), (1, 2))
    >>> [grid.title for grid in found], left_out
    (['[0:2, :, :]', '[2:4, :, :]'], 0)
    """
    others = [dim for dim in range(layout.rank) if dim not in dims]
    counts = [layout.split_count(dim) for dim in others]
    places = islice(product(*map(range, counts)), MOST_GRIDS)
    found = [grid_at(layout, shape, dims, dict(zip(others, place, strict=True))) for place in places]
    return found, max(0, prod(counts) - MOST_GRIDS)


def grid_at(layout: Layout, shape: Sequence[int], dims: Sequence[int], at: dict[int, int]) -> Grid:
    """The grid of `dims` at the given piece of each other dim."""
    counts = [layout.split_count(dim) for dim in dims]
    shown = [range(min(count, MOST_CELLS)) for count in counts]
    row_range, column_range = [range(1)] * (2 - len(shown)) + shown

    def pieces(row: int, column: int) -> dict[int, int]:
        return {**at, **dict(zip(dims, (row, column)[2 - len(dims) :], strict=True))}

    def labels(dim_place: int, over: range) -> tuple[Interval, ...]:
        if dim_place < 0:
            return ((0, 1),)
        dim = dims[dim_place]
        return tuple(_interval(layout, shape, dim, position) for position in over)

    split = [dim for dim in at if layout.splits[dim]]
    where = {dim: _interval(layout, shape, dim, at[dim]) for dim in split}
    title = ", ".join(f"{where[d][0]}:{where[d][1]}" if d in where else ":" for d in range(layout.rank))
    return Grid(
        layout,
        f"[{title}]" if split else "",
        labels(len(dims) - 2, row_range),
        labels(len(dims) - 1, column_range),
        tuple(tuple(_cell(layout, shape, pieces(row, column)) for column in column_range) for row in row_range),
        len(dims) == 2 and counts[0] > MOST_CELLS,
        len(dims) > 0 and counts[-1] > MOST_CELLS,
    )


def _coords(layout: Layout, dim: int, position: int) -> dict[str, int]:
    """The coordinates, along the axes that split a dim, of the slots that hold one of its pieces."""
    coords = {}
    for axis in reversed(layout.splits[dim]):
        position, coords[axis] = divmod(position, layout.mesh.axis_size(axis))
    return coords


def _interval(layout: Layout, shape: Sequence[int], dim: int, position: int) -> Interval:
    coords = _coords(layout, dim, position)
    return interval(shape[dim], [(layout.mesh.axis_size(axis), coords[axis]) for axis in layout.splits[dim]])


def _cell(layout: Layout, shape: Sequence[int], pieces: dict[int, int]) -> DrawnPart:
    mesh = layout.mesh
    fixed = {axis: coord for dim, position in pieces.items() for axis, coord in _coords(layout, dim, position).items()}
    waiting = layout.pending_axes

    def slots(contribution: dict[str, int]) -> Iterator[Slot]:
        return slots_at(mesh, {mesh.index_of[axis]: at for axis, at in (fixed | contribution).items()})

    # One more than is named, so that a reader can tell that there are more.
    contributions = islice(product(*(range(mesh.axis_size(axis)) for axis in waiting)), MOST_SLOTS + 1)
    holders = [
        tuple(islice(slots(dict(zip(waiting, coords, strict=True))), MOST_SLOTS + 1)) for coords in contributions
    ]
    box = tuple(_interval(layout, shape, dim, pieces.get(dim, 0)) for dim in range(layout.rank))
    return DrawnPart(box, tuple(holders))


def _number(mesh: DeviceMesh, slot: Slot) -> int:
    return slot if mesh.is_simulated else mesh.devices[slot].id
