"""`trace`: what moved and when, of all processes, as one file for Perfetto or chrome://tracing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from ..drawing.page import LineSpan, MovementRow, Page, Row
from ..planning.text import bytes_text
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from ..runtime.processes.transport.async_ops import settle
from ..watch.comm_log import CommLog, CommRecord, Overlap, comm_log
from ..watch.trace_events import Event, checked_file, movement_event, naming_event, trace_text

__all__ = ["trace"]


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
    file = checked_file(path)
    with comm_log() as log:
        yield log
    settle()  # what is still on its way belongs to the trace, too
    # Not in a `finally`: after an error the other processes may no longer come, and nobody waits for them.
    parts = gathered(_events(log, world.current().process), "trace")
    if world.current().process == 0:
        text = _page(list(chain(*parts)), log).html() if file.suffix == ".html" else trace_text(parts)
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
    result = [naming_event(process, f"process {process}")]
    if log.overlaps:
        result += [naming_event(process, name, line) for line, name in enumerate(("waited for", "on its way"))]
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
        yield movement_event(record, process, 0 if overlap is None else 1, at, share, record.call_site, **told)
        at += share
