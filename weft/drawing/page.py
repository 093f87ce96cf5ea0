"""`Page`: a step in time as one self-contained file for a browser: rows of what runs, memory, movements, layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

__all__ = ["LineSpan", "MovementRow", "Page", "Row"]

_TEMPLATE = Path(__file__).with_name("page.html")
_MOST_LAYOUTS = 24


@final
@dataclass(frozen=True, slots=True)
class LineSpan:
    """Something that takes time, on a line of a program."""

    start: float
    seconds: float
    name: str
    line: str
    more: str = ""


@final
@dataclass(frozen=True, slots=True)
class Row:
    """Spans one after another: what a device computes, or what a kind of link carries."""

    name: str
    colour: str
    spans: Sequence[LineSpan]


@final
@dataclass(frozen=True, slots=True)
class MovementRow:
    """A movement, as often as it happens from one line."""

    kind: str
    axes: tuple[str, ...]
    tier: str
    source: Layout
    target: Layout
    shape: tuple[int, ...]
    op: str
    line: str
    nbytes: int
    count: int
    seconds: float
    exposed: float


@final
@dataclass(frozen=True, slots=True)
class Page:
    """All that a page shows.

    >>> page = Page("A step", "on nothing", rows=[Row("computing", "--k0", [LineSpan(0.0, 1e-3, "mm", "model.py:1")])])
    >>> "model.py:1" in page.html()
    True
    """

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]] = ()
    findings: Sequence[tuple[str, str]] = ()
    meshes: Sequence[DeviceMesh] = ()
    rows: Sequence[Row] = ()
    kinds: Sequence[str] = ()
    memory: Sequence[tuple[float, Sequence[int]]] = ()
    peak: int = 0
    peak_at: int = 0
    """Which of `memory` is the worst moment."""
    capacity: int = 0
    largest: Sequence[tuple[int, str, str, str]] = ()
    moves: Sequence[MovementRow] = field(default_factory=tuple)

    def html(self) -> str:
        """The page."""
        text = json.dumps(self._data(), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        return _TEMPLATE.read_text(encoding="utf-8").replace("__DATA__", text)

    def _data(self) -> dict[str, object]:
        lines: dict[str, int] = {}

        def at(line: str) -> int:
            return lines.setdefault(line, len(lines))

        rows = [
            {
                "name": row.name,
                "colour": row.colour,
                "spans": [[_short(s.start), _short(s.seconds), s.name, at(s.line), s.more] for s in row.spans],
            }
            for row in self.rows
        ]
        largest = [[nbytes, kind, op, at(line)] for nbytes, kind, op, line in self.largest]
        ends = [span.start + span.seconds for row in self.rows for span in row.spans]
        return {
            "title": self.title,
            "subtitle": self.subtitle,
            "facts": list(self.facts),
            "findings": [{"what": what, "fix": fix} for what, fix in self.findings],
            "meshes": [
                {"text": str(mesh), "names": list(mesh.axis_names), "sizes": list(mesh.mesh_shape)}
                for mesh in self.meshes
            ],
            "seconds": max(ends, default=0.0),
            "rows": rows,
            "kinds": list(self.kinds),
            "memory": [[_short(seconds), list(held)] for seconds, held in self.memory],
            "peak": self.peak,
            "peak_at": self.peak_at,
            "capacity": self.capacity,
            "largest": largest,
            "moves": [_said(move) for move in self.moves],
            "layouts": _layouts(self.moves),
            "lines": list(lines),
        }


def _short(seconds: float) -> float:
    """Seconds to the nanosecond, which is more than any of it is known to."""
    return round(seconds, 9)


def _said(move: MovementRow) -> dict[str, object]:
    return {
        "kind": move.kind,
        "axes": "·".join(move.axes),
        "tier": move.tier,
        "from": str(move.source),
        "to": str(move.target),
        "shape": _shape(move.shape),
        "op": move.op,
        "line": move.line,
        "bytes": move.nbytes,
        "count": move.count,
        "seconds": move.seconds,
        "exposed": move.exposed,
    }


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def _layouts(moves: Sequence[MovementRow]) -> list[dict[str, object]]:
    """The layouts of what moves most, each once, as a drawing needs them."""
    found: dict[tuple[Layout, tuple[int, ...]], None] = {}
    for move in sorted(moves, key=lambda each: -each.nbytes):
        for layout in (move.source, move.target):
            if layout.rank and len(found) < _MOST_LAYOUTS:
                found.setdefault((layout, move.shape))
    return [
        {
            "text": str(layout),
            "shape": _shape(shape),
            "counts": [layout.mesh.group_size(axes) for axes in layout.splits],
            "names": ["·".join(axes) for axes in layout.splits],
            "pending": ", ".join(f"{op} over {axis}" for axis, op in layout.pending),
        }
        for layout, shape in found
    ]
