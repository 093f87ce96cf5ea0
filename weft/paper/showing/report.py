"""`StepReport`: what a step holds, moves and takes, as a dry run found it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from ...sharding.mesh import DeviceMesh
from ...watch.trace_events import checked_file, trace_text
from ..findings import Finding
from ..machine import Machine
from ..memory import MemoryUse
from ..timing import Movement, Operation
from .page import report_page
from .perfetto import trace_events
from .text import report_text

__all__ = ["StepReport"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class StepReport:
    """What one step would hold, move and take on each device; prints itself.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"dp": 64, "tp": 8}, devices=[weft.Accelerator(i) for i in range(512)])
    >>> with torch.device("meta"):
    ...     x = weft.shard(torch.empty(4096, 1024), mesh, P("dp", None))
    ...     w = weft.shard(torch.empty(1024, 8192), mesh, P(None, "tp"))
    >>> report = weft.dryrun(lambda x, w: weft.all_gather(x @ w, 1), x, w, topology="h100")
    >>> report.flops, report.bytes_by("axis"), report.memory.peak
    (134217728, {'tp': 1835008}, 6815744)
    """

    machine: Machine
    meshes: tuple[DeviceMesh, ...]
    operations: tuple[Operation, ...]
    movements: tuple[Movement, ...]
    memory: MemoryUse
    seconds: float
    """The step in all."""
    findings: tuple[Finding, ...]

    @property
    def devices(self) -> int:
        """How many devices the step is for."""
        return len({device for mesh in self.meshes for device in mesh.devices}) or 1

    @property
    def flops(self) -> int:
        """Operations of the device that computes most."""
        by_device: dict[object, int] = {}
        for each in self.operations:
            by_device[each.device] = by_device.get(each.device, 0) + each.work.flops
        return max(by_device.values(), default=0)

    @property
    def computing(self) -> float:
        """Seconds that the device with most to do computes."""
        by_device: dict[object, float] = {}
        for each in self.operations:
            by_device[each.device] = by_device.get(each.device, 0.0) + each.seconds
        return max(by_device.values(), default=0.0)

    @property
    def idle(self) -> float:
        """Which share of their time devices neither compute nor wait for what moves: the bubbles of a pipeline, for one."""
        busy: dict[object, float] = {}
        for each in self.operations:
            busy[each.device] = busy.get(each.device, 0.0) + each.seconds
        for move in self.movements:
            busy[move.device] = busy.get(move.device, 0.0) + move.exposed
        return max(0.0, 1 - sum(busy.values()) / (len(busy) * self.seconds)) if self.seconds else 0.0

    @property
    def moving(self) -> float:
        """Seconds that links carry what moves, one movement after another."""
        return sum(each.seconds for each in self.movements)

    @property
    def exposed(self) -> float:
        """Seconds of it that devices wait."""
        return sum(each.exposed for each in self.movements)

    @property
    def hidden(self) -> float:
        """Seconds of it in which devices compute."""
        hidden = self.moving - self.exposed
        return hidden if hidden > 1e-9 * self.moving else 0.0

    @property
    def bytes_received(self) -> int:
        """What the busiest device of each movement receives, added up."""
        return sum(each.record.bytes_received for each in self.movements)

    def bytes_by(self, what: str) -> dict[str, int]:
        """What the busiest device receives, by mesh "axis", link "tier", "kind" of movement, "op" or "line"; most first."""
        name_of = _KEYS.get(what)
        if name_of is None:
            raise ValueError(f"bytes_by takes one of {', '.join(map(repr, _KEYS))}, but got {what!r}")
        together: dict[str, int] = {}
        for each in self.movements:
            if each.record.bytes_received:
                name = name_of(each)
                together[name] = together.get(name, 0) + each.record.bytes_received
        return dict(sorted(together.items(), key=lambda item: -item[1]))

    def seconds_by(self, what: str) -> dict[str, float]:
        """Seconds by "op" or "line", of ops and movements; most first."""
        if what not in ("op", "line"):
            raise ValueError(f"seconds_by takes 'op' or 'line', but got {what!r}")
        together: dict[str, float] = {}
        for each in self.operations:
            name = each.op if what == "op" else str(each.line)
            together[name] = together.get(name, 0.0) + each.seconds
        for move in self.movements:
            name = move.record.kind if what == "op" else str(move.line)
            together[name] = together.get(name, 0.0) + move.seconds
        return dict(sorted(together.items(), key=lambda item: -item[1]))

    def curve(self) -> tuple[tuple[float, tuple[int, ...]], ...]:
        """The most that the fullest device holds from each op or movement to the next: seconds, and bytes of each kind."""
        own = [each for each in self.events() if each.device == self.memory.device]
        ends = [*(each.moment for each in own[1:]), self.memory.moments[-1] + 1 if self.memory.moments else 0]
        return tuple(
            (each.start + each.seconds, self.memory.most_between(each.moment, end))
            for each, end in zip(own, ends, strict=True)
        )

    def events(self) -> list[Operation | Movement]:
        """Ops and movements in the order in which the program makes them."""
        both: list[Operation | Movement] = [*self.operations, *self.movements]
        return sorted(both, key=lambda each: each.moment)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one page that a browser opens from the file: time, memory, movements, layouts.

        >>> import pathlib, tempfile, torch, weft
        >>> report = weft.dryrun(lambda x: x @ x, torch.ones(4, 4), topology="h100")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.save(pathlib.Path(folder, "step.html"))
        ...     "A step on 1 h100" in pathlib.Path(folder, "step.html").read_text()
        True
        """
        checked_file(path, "a page").write_text(report_page(self).html(), encoding="utf-8")

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the step in time as a trace that Perfetto and chrome://tracing show.

        >>> import json, pathlib, tempfile, torch, weft
        >>> report = weft.dryrun(lambda x: x @ x, torch.ones(4, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.perfetto(pathlib.Path(folder, "step.json"))
        ...     events = json.loads(pathlib.Path(folder, "step.json").read_text())["traceEvents"]
        >>> [event["name"] for event in events if event["ph"] == "X"]
        ['mm']
        """
        file = checked_file(path)
        file.write_text(trace_text([trace_events(self)]))

    def __str__(self) -> str:
        return report_text(self)

    def __repr__(self) -> str:
        return f"<{str(self).splitlines()[0]}>"


_KEYS: Mapping[str, Callable[[Movement], str]] = {
    "axis": lambda each: "·".join(each.record.axes) or "between meshes",
    "tier": lambda each: each.tier.name.lower(),
    "kind": lambda each: each.record.kind,
    "op": lambda each: each.record.op,
    "line": lambda each: str(each.line),
}
