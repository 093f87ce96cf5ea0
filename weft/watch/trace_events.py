"""Traces for Perfetto or chrome://tracing: their events, and the file that they make up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..sharding.layout import Layout
from .comm_log import CommRecord

__all__ = ["Event", "checked_file", "movement_event", "naming_event", "trace_text"]

Event = dict[str, object]


def naming_event(process: int, name: str, line: int | None = None) -> Event:
    """What a process of the trace is called, or one of its lines.

    >>> naming_event(0, "waiting", 1)
    {'ph': 'M', 'name': 'thread_name', 'pid': 0, 'tid': 1, 'args': {'name': 'waiting'}}
    """
    if line is None:
        return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": line, "args": {"name": name}}


def movement_event(
    record: CommRecord, process: int, line: int, start: float, seconds: float, where: object, **more: object
) -> Event:
    """A step of communication, called at a line of the program."""
    return {
        "ph": "X",
        "name": record.kind,
        "cat": "implicit" if record.implicit else "explicit",
        "pid": process,
        "tid": line,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": {
            "op": record.op,
            "from": _said(record.source),
            "to": _said(record.target),
            "shape": list(record.shape),
            "axes": list(record.axes),
            "bytes received per device": record.bytes_received,
            "bytes received by all": record.total_bytes,
            "called at": str(where),
            **more,
        },
    }


def _said(layout: Layout) -> str:
    return f"{layout} on {layout.mesh}"


def checked_file(path: str | os.PathLike[str], what: str = "a trace") -> Path:
    """Where something will be written to; raises where there is no such folder."""
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write {what} to {str(path)!r}: there is no folder {str(file.parent)!r}, make it first"
        )
    return file


def trace_text(parts: Iterable[Iterable[Event]]) -> str:
    """What the file says, of the events of several processes."""
    return json.dumps({"traceEvents": [event for events in parts for event in events], "displayTimeUnit": "ms"})
