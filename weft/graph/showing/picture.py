"""A graph as a picture, drawn here: one column a device, one row a step, without any other program."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, final

from torch import fx

from ..recording.device_ref import DeviceRef
from .dot import COLOURS, box_label, is_part, source_box, types_of

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["GraphPicture", "visualize"]

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 170, 38, 24, 22, 40


@final
class GraphPicture:
    """A drawing of a graph: a notebook shows it, `str` gives the SVG, `save` writes it.

    >>> str(GraphPicture("<svg></svg>"))
    '<svg></svg>'
    """

    __slots__ = ("svg",)

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.svg


def visualize(graph: Graph) -> GraphPicture:
    """A drawing of a graph: operations from top to bottom, in one column for each device; collectives span theirs.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(graph.inputs[0] * 2)
    >>> str(visualize(graph)).count("<rect")
    2
    """
    nodes = [node for node in graph.fx.nodes if not is_part(node)]
    devices = sorted({kind.device for node in nodes for kind in types_of(node)}, key=lambda d: (d.is_gpu(), d.id))
    columns = {device: i for i, device in enumerate(devices)}
    spans = {node: _span(node, columns) for node in nodes}
    rows = _rows(nodes, spans)
    parts = [
        _arrow(rows, spans, source_box(used), node) for node in nodes for used in dict.fromkeys(node.all_input_nodes)
    ]
    parts += [_box(node, rows[node], spans[node]) for node in nodes]
    parts += [_title(str(device), column) for device, column in columns.items()]
    width = MARGIN * 2 + len(columns) * (WIDTH + GAP_X)
    height = MARGIN * 2 + (max(rows.values(), default=0) + 1) * (HEIGHT + GAP_Y)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace" font-size="11">'
    return GraphPicture("\n".join([head, *parts, "</svg>"]))


def _span(node: fx.Node, columns: dict[DeviceRef, int]) -> tuple[int, int]:
    """The first and the last column that an operation takes."""
    taken = [columns[kind.device] for kind in types_of(node)] or [0]
    return min(taken), max(taken)


def _rows(nodes: list[fx.Node], spans: dict[fx.Node, tuple[int, int]]) -> dict[fx.Node, int]:
    """The row of each operation: below what it needs, and below what stands in its columns."""
    rows: dict[fx.Node, int] = {}
    free: dict[int, int] = {}
    for node in nodes:
        low, high = spans[node]
        row = max(
            [rows[source_box(used)] + 1 for used in node.all_input_nodes]
            + [free.get(c, 0) for c in range(low, high + 1)]
        )
        rows[node] = row
        for column in range(low, high + 1):
            free[column] = row + 1
    return rows


def _left(column: int) -> int:
    return MARGIN + column * (WIDTH + GAP_X)


def _top(row: int) -> int:
    return MARGIN + row * (HEIGHT + GAP_Y)


def _box(node: fx.Node, row: int, span: tuple[int, int]) -> str:
    low, high = span
    left, width = _left(low), (high - low) * (WIDTH + GAP_X) + WIDTH
    name, *types = box_label(node)
    kind = None if node.op == "placeholder" else node.meta["call"].op.kind
    middle, top = left + width // 2, _top(row)
    lines = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{HEIGHT}" rx="6" fill="{COLOURS[kind]}" stroke="#888"/>',
        f'<text x="{middle}" y="{top + 16}" text-anchor="middle">{escape(name)}</text>',
        f'<text x="{middle}" y="{top + 30}" text-anchor="middle" fill="#666">{escape("; ".join(types)[:28])}</text>',
    ]
    return "\n".join(lines)


def _arrow(rows: dict[fx.Node, int], spans: dict[fx.Node, tuple[int, int]], source: fx.Node, target: fx.Node) -> str:
    def middle(node: fx.Node) -> int:
        low, high = spans[node]
        return (_left(low) + _left(high) + WIDTH) // 2

    start, stop = _top(rows[source]) + HEIGHT, _top(rows[target])
    return f'<line x1="{middle(source)}" y1="{start}" x2="{middle(target)}" y2="{stop}" stroke="#bbb"/>'


def _title(device: str, column: int) -> str:
    return f'<text x="{_left(column) + WIDTH // 2}" y="{MARGIN - 14}" text-anchor="middle" font-weight="bold">{device}</text>'
