"""When ops and movements begin and end: each device computes and waits in its own time, links carry what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..caches import cached
from ..devices import Device
from ..errors import PlanError
from ..planning import step_between
from ..planning.cost import mesh_tier
from ..planning.topology import Tier, Topology, axis_tier
from ..sharding.layout import Layout
from ..watch.comm_log import CommRecord
from .lines import Line
from .machine import Machine
from .recorder import Computed, Event, Moved
from .work import Work

__all__ = ["Movement", "Operation", "timed"]


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """An op on one device: when it begins, and what it takes."""

    op: str
    line: Line
    work: Work
    device: Device | None
    start: float
    seconds: float
    moment: int


@final
@dataclass(frozen=True, slots=True)
class Movement:
    """A step of communication: when it begins, what it takes, and how long the devices wait for it."""

    record: CommRecord
    line: Line
    tier: Tier
    device: Device | None
    start: float
    seconds: float
    exposed: float
    moment: int


def timed(events: Sequence[Event], machine: Machine) -> tuple[tuple[Operation, ...], tuple[Movement, ...], float]:
    """The ops and movements in time, and when the last device is done."""
    clocks: dict[Device | None, float] = {}
    operations: list[Operation] = []
    movements: list[Movement] = []
    for event in events:
        device = event.device
        start = clocks.get(device, 0.0)
        if isinstance(event, Computed):
            seconds = machine.seconds(event.work)
            operations.append(Operation(event.op, event.line, event.work, device, start, seconds, event.at))
            clocks[device] = start + seconds
        else:
            movement = _moved(event, clocks, machine)
            movements.append(movement)
            clocks[movement.device] = max(clocks.get(movement.device, 0.0), movement.start + movement.seconds)
    return tuple(operations), tuple(movements), max(clocks.values(), default=0.0)


def _moved(event: Moved, clocks: dict[Device | None, float], machine: Machine) -> Movement:
    record = event.record
    tier = record_tier(record, machine.topology)
    seconds = _seconds(record, machine.topology.link(tier).time(record.bytes_received, _phases(record)))
    source, target = record.source.mesh.devices[0], record.target.mesh.devices[0]
    start = clocks.get(source, 0.0)
    exposed = max(0.0, start + seconds - clocks.get(target, 0.0))
    return Movement(record, event.line, tier, target, start, seconds, exposed, event.at)


def _seconds(record: CommRecord, seconds: float) -> float:
    return seconds if record.total_bytes else 0.0


def record_tier(record: CommRecord, topology: Topology) -> Tier:
    """The farthest that devices of a movement's groups are apart."""
    if record.source.mesh != record.target.mesh:
        return mesh_tier(record.source.mesh, record.target.mesh, topology)
    return max((axis_tier(record.target.mesh, axis, topology) for axis in record.axes), default=Tier.DEVICE)


def _phases(record: CommRecord) -> int:
    return _phases_between(record.kind, record.source, record.target, record.shape)


@cached(4096)
def _phases_between(kind: str, source: Layout, target: Layout, shape: tuple[int, ...]) -> int:
    """How many times devices wait for each other; what a plan has no step for is one exchange."""
    try:
        step = step_between(source, target, shape, 1)
    except (PlanError, ValueError):
        return 1
    return max(1, step.phases) if step.kind == kind else 1
