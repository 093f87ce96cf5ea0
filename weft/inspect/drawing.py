"""Drawings of layouts: which slots hold which part of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..sharding.layout import Layout
from ..sharding.mesh import Slot

__all__ = ["drawing"]

MOST_CELLS = 16
"""So many pieces along a dim are drawn; the rest is dots."""
MOST_SLOTS = 8


def drawing(layout: Layout, shape: Sequence[int], dims: Sequence[int], title: str = "") -> Group:
    """A grid of the pieces of at most two dims, each with the slots that hold it; contributions have a plus between.

    >>> from rich.console import Console
    >>> from weft.sharding import make_mesh
    >>> Console(width=40).print(drawing(Layout(make_mesh({"a": 2, "b": 2}), ((), ("b",))), (4, 4), (0, 1)))
    (–, b)
    ┌─────┬─────┐
    │ 0 2 │ 1 3 │
    └─────┴─────┘
    """
    rows, columns = _counts(layout, dims)
    hidden = [dim for dim in range(len(shape)) if dim not in dims and layout.splits[dim]]
    grid = Table(box=box.SQUARE, show_header=False, show_lines=True)
    for _ in range(min(columns, MOST_CELLS) + (columns > MOST_CELLS)):
        grid.add_column(no_wrap=True)
    for row in range(min(rows, MOST_CELLS)):
        cells = [_cell(layout, dims, (row, column)[2 - len(dims) :]) for column in range(min(columns, MOST_CELLS))]
        grid.add_row(*cells, *["…"] * (columns > MOST_CELLS))
    if rows > MOST_CELLS:
        grid.add_row(*["…"] * len(grid.columns))
    head = Text(f"{title} {layout}".strip(), no_wrap=True)
    return Group(head, grid, *[Text(f"dim {dim} is split too") for dim in hidden])


def _counts(layout: Layout, dims: Sequence[int]) -> tuple[int, int]:
    counts = [layout.split_count(dim) for dim in dims]
    rows, columns = [1] * (2 - len(counts)) + counts
    return rows, columns


def _cell(layout: Layout, dims: Sequence[int], index: Sequence[int]) -> str:
    """The slots that hold a piece, replicas side by side."""
    sizes = layout.mesh.shape
    ranges: dict[str, Sequence[int]] = {axis: range(size) for axis, size in sizes.items()}
    for dim, position in zip(dims, index, strict=True):
        for axis in reversed(layout.splits[dim]):
            position, coord = divmod(position, sizes[axis])
            ranges[axis] = (coord,)
    contributions: dict[tuple[int, ...], list[Slot]] = {}
    for coords in product(*ranges.values()):
        at = dict(zip(ranges, coords, strict=True))
        key = tuple(at[axis] for axis in layout.pending_axes)
        contributions.setdefault(key, []).append(layout.mesh.slot(coords))
    return " + ".join(_listed(slots) for slots in contributions.values())


def _listed(slots: Sequence[Slot]) -> str:
    shown = " ".join(map(str, slots[:MOST_SLOTS]))
    return f"{shown} …" if len(slots) > MOST_SLOTS else shown
