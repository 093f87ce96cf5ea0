"""A report as a trace for Perfetto or chrome://tracing: what devices compute, what each kind of link carries, what is held."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...devices import Device
from ...watch.trace_events import Event, movement_event, naming_event
from ..ledger import KINDS

if TYPE_CHECKING:
    from .report import StepReport

__all__ = ["trace_events"]

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
        yield naming_event(pid, f"{device} and those like it")
        yield naming_event(pid, "computing", 0)
    for device, tier in dict.fromkeys((move.device, move.tier) for move in report.movements):
        yield naming_event(pids[device], f"links: {tier.name.lower()}", 1 + int(tier))


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
        line = 1 + int(move.tier)
        yield movement_event(move.record, pids[move.device], line, move.start, move.seconds, move.line)


def _held(report: StepReport, pids: Numbers) -> Iterator[Event]:
    """What is held, by kind, on the device that holds most."""
    pid = pids.get(report.memory.device, 0)
    for seconds, held in report.curve():
        args = {kind: nbytes for kind, nbytes in zip(KINDS, held, strict=True) if nbytes}
        yield {"ph": "C", "name": "memory", "pid": pid, "ts": seconds * 1e6, "args": args}
