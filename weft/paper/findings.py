"""Findings: what is wrong with a step, on which line, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ..planning.text import bytes_text, shape_text, time_text
from ..sharding.layout import Layout
from ..sharding.mapping import named_mapping
from ..watch.comm_log import CommRecord
from .machine import Machine
from .memory import MemoryUse
from .showing.text import short
from .timing import Movement

__all__ = ["Finding", "findings"]

_LEAST_SHARE = 0.1
"""Of the time of a step, below which a movement is not worth a word."""
_MOST = 5


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, where, what it costs, and how to mend it."""

    what: str
    line: str
    nbytes: int
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.fix}"


@final
@dataclass(frozen=True, slots=True)
class StepInput:
    """A tensor that a step was given."""

    layout: Layout
    shape: tuple[int, ...]
    is_parameter: bool


def findings(
    movements: Sequence[Movement], memory: MemoryUse, machine: Machine, seconds: float, given: Sequence[StepInput]
) -> tuple[Finding, ...]:
    """All that was found: what makes a step impossible, then what makes others dear, then the dearest lines."""
    parameters = {form for each in given if each.is_parameter for form in _forms(each)}
    moved = [each for each in movements if each.record.implicit and each.record.bytes_received]
    others = [each for each in moved if not _is_of(each, parameters)]
    batch = [each for each in given if not each.is_parameter and each.shape]
    cause = _lost_batch(others, batch) or _whole_batch(others, batch)
    found = [*_too_large(memory, machine), *([] if cause is None else [cause])]
    return (*found, *_dear_movements(others, seconds))


def _forms(given: StepInput) -> Iterator[tuple[Layout, tuple[int, ...]]]:
    """A parameter as it lies, and turned as products take it."""
    yield given.layout, given.shape
    if len(given.shape) == 2:
        yield given.layout.permuted((1, 0)), given.shape[::-1]


def _is_of(movement: Movement, forms: set[tuple[Layout, tuple[int, ...]]]) -> bool:
    """Whether a parameter is brought to where it is used, or its gradient to where it lies."""
    record = movement.record
    return (record.source, record.shape) in forms or (record.target, record.shape) in forms


def _lost_batch(movements: Sequence[Movement], batch: Sequence[StepInput]) -> Finding | None:
    """The first line after which a batch that was split is whole."""
    for at, each in enumerate(movements):
        record = each.record
        for given in batch:
            axes = given.layout.splits[0]
            if not axes or record.shape[:1] != given.shape[:1] or record.source.splits[0] != axes:
                continue
            lost = [axis for axis in axes if axis not in record.target.split_axes]
            if lost:
                after = [other for other in movements[at:] if set(other.record.axes) & set(lost)]
                received = sum(other.record.bytes_received for other in after)
                names = ", ".join(map(repr, lost))
                return Finding(
                    f"the batch is gathered by {record.op} at {short(str(each.line))}, and its split over {names} is lost: "
                    f"{bytes_text(received)} a device move over {names} from there on",
                    str(each.line),
                    received,
                    f"What it meets there is split over {names} too: split another dim of that, as P(('tp', 'dp')) for P('tp', 'dp'), "
                    "or gather it where it is used, weft.shard(weight, mesh, P('tp')).",
                )
    return None


def _whole_batch(movements: Sequence[Movement], batch: Sequence[StepInput]) -> Finding | None:
    """The dearest line of a step whose batch is whole on every device."""
    if not batch or not movements or any(given.layout.splits[0] for given in batch):
        return None
    over: dict[str, int] = {}
    for each in movements:
        for axis in each.record.axes:
            over[axis] = over.get(axis, 0) + each.record.bytes_received
    axis = max(over, key=lambda name: over[name])
    dearest = max((each for each in movements if axis in each.record.axes), key=lambda each: each.record.bytes_received)
    count = dearest.record.target.mesh.axis_size(axis)
    return Finding(
        f"the batch is whole on every device: {bytes_text(over[axis])} a device move over {axis!r}, most of it at "
        f"{short(str(dearest.line))}, where {dearest.record.op} moves {' × '.join(map(str, dearest.record.shape))} "
        f"({dearest.record.kind})",
        str(dearest.line),
        over[axis],
        f"Split the batch, weft.shard(batch, mesh, P({axis!r})): each of {count} devices then computes and moves its part only.",
    )


def _too_large(memory: MemoryUse, machine: Machine) -> Iterator[Finding]:
    if memory.peak <= machine.memory:
        return
    kind = max(memory.at_peak, key=lambda each: memory.at_peak[each])
    fixes = {
        "parameters": "split the parameters over more mesh axes",
        "gradients": "split the parameters, and with them their gradients, over more mesh axes",
        "optimizer state": "split the parameters, and with them the optimizer's state, over more mesh axes",
        "kept for backward": "split the batch or the sequence further, or compute again what is kept (torch.utils.checkpoint)",
        "inputs": "split what the step is given",
    }
    line = next((str(held.line) for held in memory.largest if held.kind == kind), "")
    yield Finding(
        f"the step does not fit: {bytes_text(memory.peak)} on the fullest device, which has {bytes_text(machine.memory)}; "
        f"{bytes_text(memory.at_peak[kind])} of it are {kind}, most made at {short(line)}",
        line,
        memory.peak - machine.memory,
        f"To make it smaller: {fixes.get(kind, 'move less at once, or in parts')}.",
    )


def _dear_movements(movements: Sequence[Movement], seconds: float) -> Iterator[Finding]:
    """Lines where devices wait long for what nobody asked to move."""
    groups: dict[tuple[str, str, Layout, Layout], list[Movement]] = {}
    for each in movements:
        key = (str(each.line), each.record.kind, each.record.source, each.record.target)
        groups.setdefault(key, []).append(each)
    dear = sorted(groups.values(), key=lambda group: -sum(each.exposed for each in group))
    for group in dear[:_MOST]:
        waited = sum(each.exposed for each in group)
        if waited < _LEAST_SHARE * seconds:
            return
        first, received = group[0].record, sum(each.record.bytes_received for each in group)
        often = f" in {len(group)} movements" if len(group) > 1 else ""
        yield Finding(
            f"{first.op} at {short(str(group[0].line))} moves a tensor of shape {shape_text(first.shape)} from {first.source} to "
            f"{first.target}{often}: {bytes_text(received)} a device over {', '.join(map(repr, first.axes))} ({first.kind}), "
            f"{time_text(waited)} of {time_text(seconds)}",
            str(group[0].line),
            received,
            _fix(first),
        )


def _fix(record: CommRecord) -> str:
    axes = [axis for axis in record.source.pending_axes if axis not in record.target.pending_axes]
    if axes:
        names = ", ".join(map(repr, axes))
        return (
            f"It is a sum that was left pending over {names}, because a dim that is summed over is split there: split another "
            "dim of what it is computed of."
        )
    source, target = named_mapping(record.source), named_mapping(record.target)
    return (
        f"It is {source.spec!r} where {target.spec!r} is needed: lay what it is computed of out so that nothing has to move, "
        f"or move it once, on purpose, weft.shard(x, mesh, {target.spec!r})."
    )
