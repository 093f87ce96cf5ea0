"""Where time went: the events of torch's profiler, told apart by op, by line and by what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from ..runtime.spans import COMMUNICATION, OP, WAITING

__all__ = ["ProfileEvent", "ProfileRow", "rows_of"]

_BACKWARD = "autograd::engine::evaluate_function: "
_HOST_WAITS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"})
"""Where the host waits for a GPU."""
_PLAIN = ("aten::", "c10d::", "triton")
"""What the names of torch's own work begin with, beside what it calls by the names of functions."""


@final
@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """Something that torch's profiler saw. Times are in microseconds."""

    name: str
    thread: int
    start: float
    end: float
    sequence: int = -1
    """The number of the forward op, and of its backward node."""
    device: float = 0.0
    """How long the GPU worked on what was launched here, and not in an event inside."""


@final
@dataclass(slots=True)
class ProfileRow:
    """What one op at one line of the program took, in seconds of the host's time if not said otherwise."""

    op: str
    where: str
    calls: int = 0
    total: float = 0.0
    kernels: float = 0.0
    """In torch's own ops: computing on a CPU, launching on a GPU."""
    device: float = 0.0
    """On a GPU, computing and moving."""
    communication: float = 0.0
    waiting: float = 0.0
    """For other processes, or for a GPU."""

    @property
    def python(self) -> float:
        """The rest: Weft's own work, and torch's on the way to it."""
        return max(0.0, self.total - self.kernels - self.communication - self.waiting)


@dataclass(slots=True)
class _Node:
    """An event with those around it: the row that it counts for, and as what."""

    event: ProfileEvent
    above: _Node | None
    row: ProfileRow | None = None
    kind: str = ""
    is_above_ours: bool = False
    """Whether there is a span of Weft's inside."""


def rows_of(events: Iterable[ProfileEvent]) -> list[ProfileRow]:
    """Rows by op and line, those that took most first. What an op does by other ops counts for it.

    >>> rows_of([ProfileEvent(OP + "mm::a.py:1", 0, 0.0, 9e6), ProfileEvent("aten::mm", 0, 1e6, 5e6)])[0].kernels
    4.0
    """
    nodes = _nested(sorted(events, key=lambda event: (event.thread, event.start, -event.end)))
    lines = _lines(nodes)
    found: dict[tuple[str, str], ProfileRow] = {}
    for node in nodes:
        above = node.above
        if above is not None and above.row is not None:
            node.row, node.kind = above.row, above.kind
        elif _is_ours(node.event.name):
            op, where = _title(node, lines)
            node.row = found.setdefault((op, where), ProfileRow(op, where))
            node.row.calls += 1
            node.row.total += _seconds(node.event)
        if node.row is not None:
            _count(node, node.row)
    return sorted(found.values(), key=lambda row: -row.total)


def _count(node: _Node, row: ProfileRow) -> None:
    """Adds an event to its row, unless it lies in one that counts as a whole."""
    event = node.event
    row.device += event.device / 1e6
    kind = _kind(node)
    if kind == "waiting" and node.kind != "waiting":
        row.waiting += _seconds(event)
        if node.kind:  # it lies in what has been counted as something else
            setattr(row, node.kind, getattr(row, node.kind) - _seconds(event))
        node.kind = kind
    elif kind and not node.kind:
        setattr(row, kind, getattr(row, kind) + _seconds(event))
        node.kind = kind


def _kind(node: _Node) -> str:
    name = node.event.name
    if name.startswith(WAITING) or name in _HOST_WAITS:
        return "waiting"
    if name.startswith(COMMUNICATION):
        return "communication"
    return "kernels" if name.startswith(_PLAIN) and not node.is_above_ours else ""


def _nested(events: Sequence[ProfileEvent]) -> list[_Node]:
    """Events in order, each with the one around it."""
    nodes: list[_Node] = []
    above: _Node | None = None
    for event in events:
        while above is not None and (above.event.thread != event.thread or above.event.end < event.end):
            above = above.above
        node = above = _Node(event, above)
        nodes.append(node)
        if _is_ours(event.name):
            around = node.above
            while around is not None and not around.is_above_ours:
                around.is_above_ours = True
                around = around.above
    return nodes


def _lines(nodes: Sequence[_Node]) -> dict[int, str]:
    """For the number of a forward op, the line that called it."""
    found: dict[int, str] = {}
    for node in nodes:
        around = node.above
        if node.event.name.startswith(OP) and around is not None:
            while around is not None and around.event.sequence < 0:
                around = around.above
            if around is not None and not around.event.name.startswith(_BACKWARD) and not _backward_of(node):
                found.setdefault(around.event.sequence, _said(node.event.name)[1])
    return found


def _title(node: _Node, lines: dict[int, str]) -> tuple[str, str]:
    """The op and the line of a row; of a backward pass, the line whose gradient it is."""
    op, where = _said(node.event.name)
    backward = _backward_of(node)
    if backward is None:
        return op, where
    return f"{op} (backward)", lines.get(backward.sequence, where)


def _backward_of(node: _Node) -> ProfileEvent | None:
    """The node of autograd's graph that an event is part of."""
    around = node.above
    while around is not None and not around.event.name.startswith(_BACKWARD):
        around = around.above
    return None if around is None else around.event


def _said(name: str) -> tuple[str, str]:
    """The op, or the kind of communication, and the line, by the name of a span."""
    for mark in (OP, COMMUNICATION, WAITING):
        if name.startswith(mark):
            op, _, where = name.removeprefix(mark).partition("::")
            return op, where
    return name, ""


def _is_ours(name: str) -> bool:
    return name.startswith((OP, COMMUNICATION, WAITING))


def _seconds(event: ProfileEvent) -> float:
    return (event.end - event.start) / 1e6
