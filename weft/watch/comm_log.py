"""`comm_log`: a record of everything that moves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..planning import Plan
from ..runtime.traced import is_traced
from ..sharding.layout import Layout
from .call_site import CallSite, call_site
from .setting import Setting

__all__ = ["CommLog", "CommRecord", "Overlap", "UnderWay", "comm_log", "log_again", "log_plan"]


@dataclass(frozen=True, slots=True)
class CommRecord:
    """One step of communication: what it was, between which layouts, how many bytes, and who asked for it.

    >>> import torch, weft
    >>> x = weft.shard(torch.ones(8), weft.make_mesh({"tp": 4}), weft.P("tp"))
    >>> with weft.comm_log() as log:
    ...     y = weft.all_gather(x)
    >>> log[0].kind, log[0].axes, log[0].bytes_received, log[0].op, log[0].implicit
    ('all_gather', ('tp',), 24, 'all_gather', False)
    """

    kind: str
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    shape: tuple[int, ...]
    bytes_received: int
    """By the device that receives most."""
    total_bytes: int
    """By all devices together."""
    op: str
    implicit: bool
    call_site: CallSite
    started: float = field(default_factory=time.time, compare=False)
    """When it began, in seconds since 1970."""
    rows: tuple[int, ...] = ()
    """Of rows that are sent to where they are needed, such as tokens to their experts: how many each device has then."""
    groups: tuple[int, ...] = ()
    """How many rows each group has that they are sent for: each expert."""


@dataclass(slots=True)
class Overlap:
    """When a movement that was asked for with `async_op=True` ran, and how long the program waited for it.

    >>> Overlap(1, started=10.0, ended=12.0, waited=0.5).hidden
    1.5
    """

    count: int
    """How many records there were when it was asked for; the last of them are its own."""
    started: float = 0.0
    ended: float = 0.0
    """In seconds since 1970; 0 where it has not ended."""
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The seconds of its time in which the program did something else."""
        return max(0.0, self.ended - self.started - self.waited)


@dataclass(slots=True)
class CommLog:
    """The records of a `comm_log` block, in order; prints as a table.

    >>> import torch, weft
    >>> x = weft.shard(torch.ones(8), weft.make_mesh({"tp": 4}), weft.P("tp"))
    >>> with weft.comm_log() as log:
    ...     y = weft.all_gather(x)
    >>> len(log), log.counts(), log.bytes_received, log.total_bytes
    (1, {'all_gather': 1}, 24, 96)
    """

    records: list[CommRecord] = field(default_factory=list)
    ends: list[tuple[int, float]] = field(default_factory=list)
    """How many records there were, and the time, whenever a movement was done."""
    overlaps: list[Overlap] = field(default_factory=list)
    """The movements that ran while the program went on."""

    @property
    def hidden(self) -> float:
        """Which share of the time of movements with `async_op=True` was hidden: the program did not wait for it; 0 without any.

        Between accelerators, where the device waits and not the program, times are those of the host.
        """
        total = sum(each.ended - each.started for each in self.overlaps if each.ended)
        return sum(each.hidden for each in self.overlaps if each.ended) / total if total else 0.0

    def counts(self) -> dict[str, int]:
        """How often each kind of communication happened."""
        return dict(Counter(record.kind for record in self.records))

    @property
    def bytes_received(self) -> int:
        """What the busiest device of each step received, added up."""
        return sum(record.bytes_received for record in self.records)

    @property
    def total_bytes(self) -> int:
        """What all devices together received."""
        return sum(record.total_bytes for record in self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[CommRecord]:
        return iter(self.records)

    def __getitem__(self, index: int) -> CommRecord:
        return self.records[index]

    def __str__(self) -> str:
        head = ("kind", "axes", "from", "to", "bytes/device", "total", "op", "where")
        rows = [
            (
                r.kind,
                ",".join(r.axes),
                str(r.source),
                str(r.target),
                f"{r.bytes_received:,}",
                f"{r.total_bytes:,}",
                r.op + (" (implicit)" if r.implicit else "") + _loads(r),
                str(r.call_site),
            )
            for r in self.records
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
        )


def _loads(record: CommRecord) -> str:
    """How many rows devices and groups have, in words."""
    rows = f", rows {'·'.join(map(str, record.rows))}" if record.rows else ""
    return rows + (f" of groups {'·'.join(map(str, record.groups))}" if record.groups else "")


_open: Setting[tuple[CommLog, ...]] = Setting("comm_log", ())
"""The logs that are open here."""


@contextmanager
def comm_log() -> Iterator[CommLog]:
    """Records every movement and combination inside the block.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> x = weft.shard(torch.ones(8, 8), mesh, P("tp", None))
    >>> with weft.comm_log() as log:
    ...     y = weft.shard(x, mesh, P(None, "tp"))
    >>> log.counts(), log.bytes_received
    ({'all_to_all': 1}, 48)
    """
    log = CommLog()
    before = _open.set((*_open.get(), log))
    try:
        yield log
    finally:
        _open.restore(before)


def is_logging() -> bool:
    """Whether any log is open."""
    return bool(_open.get())


def open_logs() -> tuple[CommLog, ...]:
    """The logs that are open here."""
    return _open.get()


@contextmanager
def paused() -> Iterator[None]:
    """Records nothing inside the block: what moves there has been recorded before."""
    before = _open.set(())
    try:
        yield
    finally:
        _open.restore(before)


def note_end() -> None:
    """Tells the open logs that what they recorded last is done."""
    logs = _open.get()
    if not logs or is_traced():
        return
    now = time.time()
    for log in logs:
        log.ends.append((len(log.records), now))


class UnderWay:
    """What tells the logs that are open now, later, when a movement ran and how long it was waited for."""

    def __init__(self) -> None:
        open_now = () if is_traced() else _open.get()
        self._overlaps = [(log, Overlap(len(log.records))) for log in open_now]

    def overlap(self) -> None:
        """Notes that the program goes on while it runs."""
        for log, each in self._overlaps:
            log.overlaps.append(each)

    def start(self) -> None:
        """Notes that it begins."""
        now = time.time()
        for _, each in self._overlaps:
            each.started = now

    def end(self) -> None:
        """Notes that it is done."""
        now = time.time()
        for log, each in self._overlaps:
            each.ended = now
            log.ends.append((each.count, now))

    def wait(self, seconds: float) -> None:
        """Notes how long the program waited for it."""
        for _, each in self._overlaps:
            each.waited += seconds


def log_again(records: Sequence[CommRecord]) -> None:
    """Adds to the open logs what is done again now, as it was recorded before."""
    logs = _open.get()
    if not logs:
        return
    now = time.time()
    again = [replace(record, started=now) for record in records]
    for log in logs:
        log.records += again
        log.ends.append((len(log.records), now))


def log_plan(plan: Plan, op: str, *, implicit: bool) -> None:
    """Adds a plan's steps to the open logs; implicit steps that move nothing are left out."""
    if not _open.get():
        return
    for step in plan.steps:
        if step.bytes_received.total or not implicit:
            received = step.bytes_received
            log_step(
                step.kind,
                step.axes,
                step.source,
                step.target,
                plan.shape,
                received.max,
                received.total,
                op,
                implicit=implicit,
            )


def log_step(
    kind: str,
    axes: tuple[str, ...],
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    bytes_received: int,
    total_bytes: int,
    op: str,
    *,
    implicit: bool,
    rows: tuple[int, ...] = (),
    groups: tuple[int, ...] = (),
) -> None:
    """Adds one step to the open logs."""
    said = (kind, axes, source, target, shape, bytes_received, total_bytes, op, implicit, call_site())
    record = CommRecord(*said, rows=rows, groups=groups)
    for log in _open.get():
        log.records.append(record)
