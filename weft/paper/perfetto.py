"""A report as a trace for Perfetto or chrome://tracing: what devices compute, what each kind of link carries, what is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ledger import KINDS

if TYPE_CHECKING:
    from .report import StepReport

__all__ = ["trace_events"]

Event = dict[str, object]


def trace_events(report: StepReport) -> list[Event]:
    """The events of a step: a row of ops and one for each kind of link on each device, and a counter of memory."""
    devices = list(dict.fromkeys([each.device for each in report.events()]))
    pids = {device: number for number, device in enumerate(devices)}
    events: list[Event] = []
    for device, pid in pids.items():
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{device} and those like it"}})
        events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "computing"}})
    events += [
        {
            "ph": "X",
            "name": each.op,
            "cat": "compute",
            "pid": pids[each.device],
            "tid": 0,
            "ts": each.start * 1e6,
            "dur": each.seconds * 1e6,
            "args": {"called at": str(each.line), "operations": each.work.flops, "bytes": each.work.nbytes},
        }
        for each in report.operations
    ]
    rows: set[tuple[int, int]] = set()
    for move in report.movements:
        pid, tid = pids[move.device], 1 + int(move.tier)
        if (pid, tid) not in rows:
            rows.add((pid, tid))
            name = f"links: {move.tier.name.lower()}"
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        record = move.record
        events.append(
            {
                "ph": "X",
                "name": record.kind,
                "cat": "implicit" if record.implicit else "explicit",
                "pid": pid,
                "tid": tid,
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
        )
    pid = pids.get(report.memory.device, 0)
    for seconds, held in report.curve():
        args = {kind: nbytes for kind, nbytes in zip(KINDS, held, strict=True) if nbytes}
        events.append({"ph": "C", "name": "memory", "pid": pid, "ts": seconds * 1e6, "args": args})
    return events
