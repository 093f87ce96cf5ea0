"""A report as a trace for Perfetto or chrome://tracing: what devices compute, what each kind of link carries, what is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...devices import Device
from ..ledger import KINDS

if TYPE_CHECKING:
    from .report import StepReport

__all__ = ["trace_events"]

Event = dict[str, object]
Numbers = dict[Device | None, int]
"""Devices as the trace numbers them."""


def trace_events(report: StepReport) -> list[Event]:
    """The events of a step: a row of ops and one for each kind of link on each device, and a counter of memory."""
    devices = dict.fromkeys(each.device for each in report.events())
    pids = {device: number for number, device in enumerate(devices)}
    return [*_named(report, pids), *_computed(report, pids), *_carried(report, pids), *_held(report, pids)]


def _named(report: StepReport, pids: Numbers) -> Iterator[Event]:
    """What devices and their rows are called."""
    for device, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{device} and those like it"}}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "computing"}}
    for device, tier in dict.fromkeys((move.device, move.tier) for move in report.movements):
        name = f"links: {tier.name.lower()}"
        yield {"ph": "M", "name": "thread_name", "pid": pids[device], "tid": 1 + int(tier), "args": {"name": name}}


def _computed(report: StepReport, pids: Numbers) -> Iterator[Event]:
    for each in report.operations:
        yield {
            "ph": "X",
            "name": each.op,
            "cat": "compute",
            "pid": pids[each.device],
            "tid": 0,
            "ts": each.start * 1e6,
            "dur": each.seconds * 1e6,
            "args": {"called at": str(each.line), "operations": each.work.flops, "bytes": each.work.nbytes},
        }


def _carried(report: StepReport, pids: Numbers) -> Iterator[Event]:
    for move in report.movements:
        record = move.record
        yield {
            "ph": "X",
            "name": record.kind,
            "cat": "implicit" if record.implicit else "explicit",
            "pid": pids[move.device],
            "tid": 1 + int(move.tier),
            "ts": move.start * 1e6,
            "dur": move.seconds * 1e6,
            "args": {
                "op": record.op,
                "from": f"{record.source} on {record.source.mesh}",
                "to": f"{record.target} on {record.target.mesh}",
                "shape": list(record.shape),
                "axes": list(record.axes),
                "bytes received per device": record.bytes_received,
                "bytes received by all": record.total_bytes,
                "called at": str(move.line),
            },
        }


def _held(report: StepReport, pids: Numbers) -> Iterator[Event]:
    """What is held, by kind, on the device that holds most."""
    pid = pids.get(report.memory.device, 0)
    for seconds, held in report.curve():
        args = {kind: nbytes for kind, nbytes in zip(KINDS, held, strict=True) if nbytes}
        yield {"ph": "C", "name": "memory", "pid": pid, "ts": seconds * 1e6, "args": args}
