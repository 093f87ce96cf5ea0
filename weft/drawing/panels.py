"""Drawings for a terminal: which devices hold which part of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..sharding.geometry import Interval
from ..sharding.layout import Layout
from .grid import Grid, Palette, grid_at, grids

__all__ = ["drawing", "panels", "printed"]

WIDTH = 100
"""Where the output is no terminal, whose width would be known."""


def printed(picture: RenderableType, width: int = WIDTH) -> str:
    """What a picture looks like: in colours where this program prints to a terminal, else plain and of this width.

    >>> printed(Text("held", style="red"))
    'held'
    """
    console = Console(force_jupyter=False, highlight=False)
    if not console.is_terminal:
        console.width = width
    with console.capture() as capture:
        console.print(picture)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def drawing(
    layout: Layout, shape: Sequence[int], dims: Sequence[int], title: str = "", palette: Palette | None = None
) -> Group:
    """A grid of the pieces of at most two dims, each with the slots that hold it; contributions have a plus between.

    >>> from weft.sharding import make_mesh
    >>> print(printed(drawing(Layout(make_mesh({"a": 2, "b": 2}), ((), ("b",))), (4, 4), (0, 1))))
    (–, b)
    ┌─────┬─────┐
    │ 0 2 │ 1 3 │
    └─────┴─────┘
    """
    hidden = [dim for dim in range(len(shape)) if dim not in dims and layout.splits[dim]]
    found = grid_at(layout, shape, dims, {dim: 0 for dim in range(layout.rank) if dim not in dims})
    head = Text(f"{title} {layout}".strip(), no_wrap=True)
    notes = [Text(f"dim {dim} is split too") for dim in hidden]
    return Group(head, _table(found, palette or Palette.of(layout), labelled=False), *notes)


def panels(layout: Layout, shape: Sequence[int], dims: Sequence[int], palette: Palette, *, labelled: bool) -> Group:
    """One grid of `dims` for each piece of the other dims, side by side, with the indices that rows and columns stand for.

    >>> from weft.sharding import make_mesh
    >>> layout = Layout(make_mesh({"a": 2, "b": 2}), (("b",),))
    >>> print(printed(panels(layout, (5,), (0,), Palette.of(layout), labelled=True)))
    ┌─────┬─────┐
    │ 0:3 │ 3:5 │
    ├─────┼─────┤
    │ 0 2 │ 1 3 │
    └─────┴─────┘
    """
    found, left_out = grids(layout, shape, dims)
    drawn = [
        Group(*[Text(grid.title)] * bool(grid.title and labelled), _table(grid, palette, labelled=labelled))
        for grid in found
    ]
    whole = drawn[0] if len(drawn) == 1 else Columns(drawn, padding=(0, 3))
    return Group(whole, *[Text(f"… and {left_out} more")] * bool(left_out))


def _table(grid: Grid, palette: Palette, *, labelled: bool) -> Table:
    mesh = grid.layout.mesh
    names_rows = labelled and grid.layout.rank > 1
    fitting = _fitting(grid, labelled=labelled)
    is_cut = grid.cut_columns or fitting < len(grid.columns)
    table = Table(box=box.SQUARE, show_header=labelled and grid.layout.rank > 0, show_lines=True)
    heads = [*[""] * names_rows, *map(_span, grid.columns[:fitting]), *["…"] * is_cut]
    for head in heads:
        table.add_column(head, no_wrap=True)
    for row, cells in zip(grid.rows, grid.cells, strict=True):
        table.add_row(
            *[Text(_span(row))] * names_rows,
            *[Text(cell.text(mesh), style=f"black on {palette.cell(mesh, cell)}") for cell in cells[:fitting]],
            *[Text("…")] * is_cut,
        )
    if grid.cut_rows:
        table.add_row(*["…"] * len(heads))
    return table


def _fitting(grid: Grid, *, labelled: bool) -> int:
    """How many columns fit on a screen, at least one."""
    mesh = grid.layout.mesh
    left = WIDTH - len("│ … │") - labelled * max(len(f"│ {_span(row)} ") for row in grid.rows)
    for count, (head, cells) in enumerate(zip(grid.columns, zip(*grid.cells, strict=True), strict=True)):
        left -= len("│  ") + max(labelled * len(_span(head)), *(len(cell.text(mesh)) for cell in cells))
        if left < 0:
            return max(1, count)
    return len(grid.columns)


def _span(interval: Interval) -> str:
    return f"{interval[0]}:{interval[1]}"
