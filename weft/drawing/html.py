"""Drawings for a notebook: the same grids as HTML, with the styles inside, since notebooks strip everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..planning import Plan
from ..planning.text import bytes_text, shape_text, time_text
from ..sharding.geometry import Interval
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .grid import Grid, Palette, drawn_dims, grids, slot_name
from .traffic import Traffic, traffic

__all__ = ["layout_html", "plan_html"]

_CELL = "border:1px solid #888;padding:2px 8px;text-align:center;white-space:nowrap"
_HEAD = "padding:2px 8px;text-align:center;color:#888;font-weight:normal;white-space:nowrap"


def layout_html(title: str, layout: Layout, shape: Sequence[int], note: str = "", *, labelled: bool = True) -> str:
    """Which devices hold which part of a tensor.

    >>> from weft.sharding import make_mesh
    >>> "0:3" in layout_html("x", Layout(make_mesh({"a": 2}), (("a",),)), (5,))
    True
    """
    picture = _panels(layout, shape, drawn_dims(layout), Palette.of(layout), labelled=labelled)
    return _block(_line(title), picture, _line(note, faint=True))


def plan_html(plan: Plan) -> str:
    """What moves: the steps, both layouts, and how much goes from which device to which.

    >>> from weft.planning import plan_layouts
    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"a": 2})
    >>> "all_gather" in plan_html(plan_layouts(Layout(mesh, (("a",),)), Layout(mesh, ((),)), (5,), 4))
    True
    """
    dims, palette = drawn_dims(plan.source, plan.target), Palette.of(plan.source, plan.target)
    ends = [
        f"<div style='margin-right:2em'>{_line(f'{word} {layout} on {layout.mesh}')}"
        f"{_panels(layout, plan.shape, dims, palette, labelled=True)}</div>"
        for word, layout in (("from", plan.source), ("to", plan.target))
    ]
    received, bound = plan.bytes_received, plan.lower_bound
    least = "the least possible" if received == bound else f"at least {bytes_text(bound.max)}"
    found = traffic(plan)
    return _block(
        _line(f"{plan.source} → {plan.target}: {shape_text(plan.shape)}"),
        _line(
            f"received {bytes_text(received.max)} on the busiest device ({least}), {bytes_text(received.total)} in all; "
            f"memory {bytes_text(plan.peak_memory)}; time {time_text(plan.estimated_time)}",
            faint=True,
        ),
        _steps(plan),
        f"<div style='display:flex;flex-wrap:wrap'>{''.join(ends)}</div>",
        "" if found is None or not found.most else _matrix(found, plan.source.mesh, plan.target.mesh),
    )


def _steps(plan: Plan) -> str:
    if not plan.steps:
        return _line("nothing to do: the layouts are the same")
    rows = [
        (step.kind, ", ".join(step.axes) or "–", f"{step.source} → {step.target}", bytes_text(step.bytes_received.max))
        for step in plan.steps
    ]
    head = _row(_cell("th", name, _HEAD) for name in ("step", "over", "layouts", "received"))
    return _table([head, *(_row(_cell("td", text, _CELL) for text in row) for row in rows)])


def _matrix(found: Traffic, sources: DeviceMesh, targets: DeviceMesh) -> str:
    names = [slot_name(targets, slot) for slot in range(targets.num_devices)]
    rows = [_row(_cell("th", name, _HEAD) for name in ("from \\ to", *names))]
    for slot, sizes in enumerate(found.rows):
        cells = [
            _cell(
                "td",
                bytes_text(size) if size else "",
                f"{_CELL};background:rgba(70,130,220,{0.6 * size / found.most:.2f})",
            )
            for size in sizes
        ]
        rows.append(_row([_cell("th", slot_name(sources, slot), _HEAD), *cells]))
    return _line("who sends how much to whom", faint=True) + _table(rows)


def _panels(layout: Layout, shape: Sequence[int], dims: Sequence[int], palette: Palette, *, labelled: bool) -> str:
    found, left_out = grids(layout, shape, dims)
    drawn = "".join(
        f"<div style='margin:0 1em .5em 0'>{_line(grid.title if labelled else '', faint=True)}"
        f"{_grid(grid, palette, labelled=labelled)}</div>"
        for grid in found
    )
    more = _line(f"… and {left_out} more", faint=True) if left_out else ""
    return f"<div style='display:flex;flex-wrap:wrap'>{drawn}</div>{more}"


def _grid(grid: Grid, palette: Palette, *, labelled: bool) -> str:
    mesh, rank = grid.layout.mesh, grid.layout.rank
    names_rows = labelled and rank > 1
    rows = []
    if labelled and rank:
        heads = [*[""] * names_rows, *map(_span, grid.columns), *["…"] * grid.cut_columns]
        rows.append(_row(_cell("th", head, _HEAD) for head in heads))
    for interval, cells in zip(grid.rows, grid.cells, strict=True):
        colored = [
            _cell("td", cell.text(mesh), f"{_CELL};color:#111;background:{palette.cell(mesh, cell)}") for cell in cells
        ]
        name = [_cell("th", _span(interval), _HEAD)] * names_rows
        rows.append(_row([*name, *colored, *[_cell("td", "…", _CELL)] * grid.cut_columns]))
    if grid.cut_rows:
        rows.append(_row([_cell("td", "…", _HEAD)] * (names_rows + len(grid.columns))))
    return _table(rows)


def _span(interval: Interval) -> str:
    return f"{interval[0]}:{interval[1]}"


def _line(text: str, *, faint: bool = False) -> str:
    return f"<div style='{'color:#888' if faint else ''}'>{escape(text)}</div>" if text else ""


def _cell(tag: str, text: str, style: str) -> str:
    return f"<{tag} style='{style}'>{escape(text)}</{tag}>"


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _table(rows: Iterable[str]) -> str:
    return f"<table style='border-collapse:collapse;margin:4px 0'>{''.join(rows)}</table>"


def _block(*parts: str) -> str:
    return f"<div style='font-family:monospace;font-size:90%'>{''.join(parts)}</div>"


Plan._repr_html_ = plan_html  # type: ignore[attr-defined]
