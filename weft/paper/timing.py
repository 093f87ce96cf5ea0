"""When ops and movements begin and end: each device computes and waits in its own time, links carry what moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from ..caches import cached
from ..devices import Device
from ..errors import PlanError
from ..planning import Step, step_between
from ..planning.costs.cost import staged, step_time, tier_between
from ..planning.topology import Tier, Topology
from ..sharding.layout import Layout
from ..watch.comm_log import CommRecord
from .lines import Line
from .machine import Machine
from .recorder import Computed, Event, MovedBytes, Waited
from .work import OpWork

__all__ = ["Movement", "Operation", "timed"]


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """An op on one device: when it begins, and what it takes."""

    op: str
    line: Line
    work: OpWork
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

    @property
    def end(self) -> float:
        """When it has arrived."""
        return self.start + self.seconds


def timed(events: Sequence[Event], machine: Machine) -> tuple[tuple[Operation, ...], tuple[Movement, ...], float]:
    """The ops and movements in time, and when the last device is done."""
    times = _Times(machine)
    for event in events:
        if isinstance(event, Computed):
            times.compute(event)
        elif isinstance(event, MovedBytes):
            times.move(event)
        else:
            times.wait(event)
    return tuple(times.operations), tuple(times.movements), max(times.clocks.values(), default=0.0)


class _Times:
    """The clock of each device, and when its links of each kind are free."""

    def __init__(self, machine: Machine) -> None:
        self.operations: list[Operation] = []
        self.movements: list[Movement] = []
        self.clocks: dict[Device | None, float] = {}
        self._machine = machine
        self._links: dict[tuple[Device, Tier], float] = {}
        self._asked: list[float] = []
        """When the source of each movement had come to it."""
        self._promised: dict[int, list[int]] = {}
        """By promise, the movements that it is for."""
        self._under_way: dict[Device | None, list[int]] = {}
        """By the device that gets them, movements that it has not waited for."""

    def compute(self, event: Computed) -> None:
        """An op begins when the one before it has ended."""
        start, seconds = self.clocks.get(event.device, 0.0), self._machine.seconds(event.work)
        self.operations.append(Operation(event.op, event.line, event.work, event.device, start, seconds, event.at))
        self.clocks[event.device] = start + seconds

    def _left(self, device: Device | None, now: float) -> list[int]:
        """The movements to a device that have not ended."""
        left = [at for at in self._under_way.get(device, ()) if self.movements[at].end > now]
        self._under_way[device] = left
        return left

    def move(self, event: MovedBytes) -> None:
        """A movement begins when its source has come to it and its link is free; devices wait for it, or later."""
        record, topology = event.record, self._machine.topology
        tier = tier_between(record.source, record.target, record.axes, topology)
        seconds = movement_seconds(record, topology)
        source, target = record.source.mesh.devices[0], record.target.mesh.devices[0]
        asked = self.clocks.get(source, 0.0)
        start = max(asked, self._links.get((source, tier), 0.0))
        self._links[source, tier] = start + seconds
        self.movements.append(Movement(record, event.line, tier, target, start, seconds, 0.0, event.at))
        self._asked.append(asked)
        at = len(self.movements) - 1
        self._under_way.setdefault(target, []).append(at)
        if event.promise is None:
            self._arrive(at)
        else:
            self._promised.setdefault(event.promise, []).append(at)

    def wait(self, event: Waited) -> None:
        """Whoever needs what is on its way waits for the rest of its time."""
        for at in self._promised.pop(event.promise, ()):
            self._arrive(at)

    def _arrive(self, at: int) -> None:
        """Lets a device wait for a movement, and so for those before it on the same link."""
        movement = self.movements[at]
        now = self.clocks.get(movement.device, 0.0)
        # Until the source has come to it, nothing moves: pipelines have such bubbles.
        waited = max(0.0, movement.end - max(now, self._asked[at]))
        link = movement.record.source.mesh.devices[0], movement.tier
        for each in self._left(movement.device, now):
            other = self.movements[each]
            if each < at and link == (other.record.source.mesh.devices[0], other.tier):
                part = min(waited, other.end - max(now, other.start))
                self.movements[each] = replace(other, exposed=other.exposed + part)
                waited -= part
        self.movements[at] = replace(movement, exposed=movement.exposed + waited)
        self.clocks[movement.device] = max(now, movement.end)


def movement_seconds(record: CommRecord, topology: Topology) -> float:
    """What a movement takes by the prices that plans are made by, through hosts or racks where that is faster."""
    if not record.total_bytes:
        return 0.0
    step = _step(record.kind, record.source, record.target, record.shape, 1)
    if step is None or record.total_bytes % step.bytes_received.total:
        tier = tier_between(record.source, record.target, record.axes, topology)
        return topology.time(tier, record.bytes_received)
    itemsize = record.total_bytes // step.bytes_received.total
    return _step_seconds(record.kind, record.source, record.target, record.shape, itemsize, topology)


@cached(4096)
def _step_seconds(
    kind: str, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, topology: Topology
) -> float:
    step = _step(kind, source, target, shape, itemsize)
    assert step is not None
    return step_time(staged(step, topology), topology)


@cached(4096)
def _step(kind: str, source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> Step | None:
    """The step that a record is of; None where it is of what plans have no step for, such as an exchange of borders."""
    try:
        step = step_between(source, target, shape, itemsize)
    except (PlanError, ValueError):
        return None
    return step if step.kind == kind and step.bytes_received.total else None
