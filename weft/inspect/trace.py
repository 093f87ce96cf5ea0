"""`trace`: what moved and when, of all processes, as one file for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..drawing.page import LineSpan, MovementRow, Page, Row
from ..planning.text import bytes_text
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from ..runtime.processes.transport.async_ops import settle
from ..sharding.layout import Layout
from ..watch.comm_log import CommLog, CommRecord, Overlap, comm_log

__all__ = ["trace"]

Event = dict[str, object]


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[CommLog]:
    """Records every movement inside the block and writes one trace of all processes to `path`, from the first process.

    A path that ends in `.html` gets a page for a browser, as that of a dry run (`weft.dryrun`), so that both lie side by side.

    >>> import json, pathlib, tempfile, torch, weft
    >>> x = weft.shard(torch.ones(8, 8), weft.make_mesh({"tp": 4}), weft.P("tp"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "trace.json")
    ...     with weft.trace(file):
    ...         y = weft.all_gather(x)
    ...     events = json.loads(file.read_text())["traceEvents"]
    >>> [event["name"] for event in events if event["ph"] == "X"]
    ['all_gather']
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise FileNotFoundError(
            f"cannot write a trace to {str(path)!r}: there is no folder {str(file.parent)!r}, make it first"
        )
    with comm_log() as log:
        yield log
    settle()  # what is still on its way belongs to the trace, too
    # Not in a `finally`: after an error the other processes may no longer come, and nobody waits for them.
    merged = [event for events in gathered(_events(log, world.current().process), "trace") for event in events]
    if world.current().process == 0:
        is_page = file.suffix == ".html"
        text = _page(merged, log).html() if is_page else json.dumps({"traceEvents": merged, "displayTimeUnit": "ms"})
        file.write_text(text, encoding="utf-8")


def _page(events: Sequence[Event], log: CommLog) -> Page:
    """What a browser shows of a trace: a row for each line of each process, and what moved, as the first process saw it."""
    spans = [event for event in events if event["ph"] == "X"]
    first = min((_number(event["ts"]) for event in spans), default=0.0)
    rows: dict[tuple[object, object], list[LineSpan]] = {}
    for event in spans:
        said = event["args"]
        assert isinstance(said, dict)
        start, seconds = (_number(event["ts"]) - first) / 1e6, _number(event["dur"]) / 1e6
        more = f"{bytes_text(said['bytes received per device'])} a device, {said['from']} to {said['to']}"
        span = LineSpan(start, seconds, str(event["name"]), str(said["called at"]), more)
        rows.setdefault((event["pid"], event["tid"]), []).append(span)
    own = [event for event in spans if event["pid"] == 0]
    groups: dict[CommRecord, list[float]] = {}
    for record, event in zip(log.records, own, strict=True):
        groups.setdefault(record, []).append(_number(event["dur"]) / 1e6)
    meshes = list(dict.fromkeys(record.target.mesh for record in log.records))
    processes = len({pid for pid, _ in rows})
    return Page(
        title=f"A run on {max((mesh.num_devices for mesh in meshes), default=1):,} devices",
        subtitle=", ".join(map(str, meshes)) or "nothing moved",
        facts=[
            ("processes", str(processes)),
            ("movements", f"{len(log):,}"),
            ("received by a device", bytes_text(log.bytes_received)),
            ("received by all", bytes_text(log.total_bytes)),
        ],
        meshes=meshes,
        rows=[
            Row(f"process {pid}" + (" on its way" if tid else ""), "--k5", sorted(each, key=lambda span: span.start))
            for (pid, tid), each in rows.items()
        ],
        moves=[_move(record, seconds) for record, seconds in groups.items()],
    )


def _move(record: CommRecord, seconds: Sequence[float]) -> MovementRow:
    return MovementRow(
        record.kind,
        record.axes,
        "",
        record.source,
        record.target,
        record.shape,
        record.op,
        str(record.call_site),
        record.bytes_received * len(seconds),
        len(seconds),
        sum(seconds),
        sum(seconds),
    )


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)


def _events(log: CommLog, process: int) -> list[Event]:
    """One event per step, and names; the steps of one movement share its time by their bytes.

    What ran while the program went on has a line of its own, and says how much of its time was hidden.
    """
    result: list[Event] = [{"ph": "M", "name": "process_name", "pid": process, "args": {"name": f"process {process}"}}]
    if log.overlaps:
        result += [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": line, "args": {"name": name}}
            for line, name in enumerate(("waited for", "on its way"))
        ]
    ends = dict(log.ends)
    overlaps = {overlap.count: overlap for overlap in log.overlaps if overlap.ended}
    group: list[CommRecord] = []
    for count, record in enumerate(log.records, start=1):
        group.append(record)
        if count in ends or count == len(log.records):
            result += _timed(group, ends.get(count, record.started), process, overlaps.get(count))
            group = []
    return result


def _timed(group: Sequence[CommRecord], end: float, process: int, overlap: Overlap | None) -> Iterator[Event]:
    at = group[0].started if overlap is None else overlap.started
    told = {} if overlap is None else {"seconds waited for": overlap.waited, "seconds hidden": overlap.hidden}
    seconds = max(0.0, end - at)
    total = sum(record.total_bytes for record in group) or 1
    for record in group:
        share = seconds * record.total_bytes / total
        yield {
            "ph": "X",
            "name": record.kind,
            "cat": "implicit" if record.implicit else "explicit",
            "pid": process,
            "tid": 0 if overlap is None else 1,
            "ts": at * 1e6,
            "dur": share * 1e6,
            "args": {
                "op": record.op,
                "from": _said(record.source),
                "to": _said(record.target),
                "shape": list(record.shape),
                "axes": list(record.axes),
                "bytes received per device": record.bytes_received,
                "bytes received by all": record.total_bytes,
                "called at": str(record.call_site),
                **told,
            },
        }
        at += share


def _said(layout: Layout) -> str:
    return f"{layout} on {layout.mesh}"
