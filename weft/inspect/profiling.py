"""`profile`: where the time of a step went, by op and by line, in a table and as a trace of all processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from ..drawing.panels import printed
from ..planning.text import time_text
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from ..runtime.processes.transport.async_ops import settle
from ..runtime.spans import COMMUNICATION, OP, WAITING, span, watching
from ..watch.trace_events import Event, checked_file, naming_event, trace_text
from .profile_rows import ProfileEvent, ProfileRow, rows_of

__all__ = ["Profile", "profile"]

_ANCHOR = "weft::now"
_SHOWN = 25
"""Rows of the table that is printed."""


@contextmanager
def profile() -> Iterator[Profile]:
    """Measures where the time of the block goes; what the block gives is filled when it ends.

    An op that is profiled takes longer than one that is not, by some ten microseconds, most of which count as Weft's own.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> x = weft.shard(torch.ones(64, 64), mesh, weft.P("tp"))
    >>> with weft.profile() as found:
    ...     y = (x @ x.T).relu()
    >>> sorted(row.op for row in found.rows)
    ['mm', 'permute', 'relu']
    >>> found.seconds >= sum(row.total for row in found.rows)
    True
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    found = Profile()
    with torch.profiler.profile(activities=activities, acc_events=True) as seen, watching():
        now = time.time()
        with span(_ANCHOR):
            pass
        start = time.perf_counter()
        yield found
        settle()  # what is still on its way belongs to the block, too
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    found._fill(list(seen.events()), now, seconds)


@final
class Profile:
    """What `weft.profile` found; prints as a table."""

    def __init__(self) -> None:
        self.rows: list[ProfileRow] = []
        """By op and line, those that took most of the host's time first."""
        self.seconds = 0.0
        """How long the block took."""
        self._events: list[FunctionEvent] = []
        self._begin = 0.0

    def _fill(self, events: list[FunctionEvent], now: float, seconds: float) -> None:
        anchor = next((event.time_range.start for event in events if event.name == _ANCHOR), 0.0)
        self._events = [event for event in events if event.name != _ANCHOR]
        self._begin = now * 1e6 - anchor
        self.seconds = seconds
        self.rows = rows_of(_seen(event) for event in self._events if event.device_type == DeviceType.CPU)

    @property
    def outside(self) -> float:
        """Seconds outside of ops on sharded tensors: torch's autograd and optimizers, and the program itself."""
        return max(0.0, self.seconds - sum(row.total for row in self.rows))

    def __rich__(self) -> RenderableType:
        has_gpu = any(row.device for row in self.rows)
        kernels = ("launches", "GPU") if has_gpu else ("kernels",)
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for name, width in (("op", 26), ("where", 22 - 8 * has_gpu)):
            table.add_column(name, no_wrap=True, max_width=width)
        for name in ("calls", "total", *kernels, "moving", "waiting", "Python"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows[:_SHOWN]:
            table.add_row(row.op, _short(row.where), str(row.calls), *_times(row, has_gpu=has_gpu))
        rest = self.rows[_SHOWN:]
        if rest:
            table.add_row(f"{len(rest)} more", "", str(sum(row.calls for row in rest)), *_times(_sum(rest), has_gpu))
        whole = _sum(self.rows)
        table.add_row("all", "", str(whole.calls), *_times(whole, has_gpu), style="bold")
        text = f"The block took {time_text(self.seconds)}, {time_text(self.outside)} of it outside of ops on sharded tensors."
        return Group(table, Text(text))

    def __str__(self) -> str:
        return printed(self)

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace of all processes, for Perfetto or chrome://tracing, from the first process.

        Under a launcher, every process has to call it.
        """
        file = checked_file(path)
        process = world.current().process
        parts = gathered(self._traced(process), "profile")
        if process == 0:
            file.write_text(trace_text(parts))

    def _traced(self, process: int) -> list[Event]:
        """The events of this process, in the form that both viewers read."""
        made = [naming_event(process, f"process {process}")]
        for event in self._events:
            kind, name, where = _described(event)
            made.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": kind,
                    "pid": process,
                    "tid": f"GPU {event.device_index}" if event.device_type != DeviceType.CPU else event.thread,
                    "ts": self._begin + event.time_range.start,
                    "dur": event.time_range.elapsed_us(),
                    "args": {"called at": where} if where else {},
                }
            )
        return made


def _seen(event: FunctionEvent) -> ProfileEvent:
    times = event.time_range
    device = sum(kernel.duration for kernel in event.kernels)
    return ProfileEvent(event.name, event.thread, times.start, times.end, event.sequence_nr, device)


def _described(event: FunctionEvent) -> tuple[str, str, str]:
    """The kind, the name and the line of an event."""
    for mark, kind in ((OP, "Weft op"), (COMMUNICATION, "communication"), (WAITING, "waiting")):
        if event.name.startswith(mark):
            name, _, where = event.name.removeprefix(mark).partition("::")
            return kind, f"waiting {name}" if mark == WAITING else name, where
    return "torch" if event.device_type == DeviceType.CPU else "GPU", event.name, ""


def _sum(rows: Sequence[ProfileRow]) -> ProfileRow:
    names = ("calls", "total", "kernels", "device", "communication", "waiting")
    return ProfileRow("", "", *(sum(getattr(row, name) for row in rows) for name in names))


def _times(row: ProfileRow, has_gpu: bool) -> list[str]:
    device = (row.device,) if has_gpu else ()
    seconds = (row.total, row.kernels, *device, row.communication, row.waiting, row.python)
    return [time_text(each) if each else "–" for each in seconds]


def _short(where: str) -> str:
    """The name of a file, and the line."""
    return where.rpartition("/")[2]
