"""`Memory use` over time: what the fullest device holds, what it is for, and which lines made the most of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ..devices import Device
from .ledger import KINDS, Allocation
from .lines import Line

__all__ = ["HeldByLine", "MemoryUse", "memory_use"]


@final
@dataclass(frozen=True, slots=True)
class HeldByLine:
    """What one line of a program has made that is held at the worst moment."""

    nbytes: int
    kind: str
    op: str
    line: Line
    count: int


@final
@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the fullest device holds: at most, what for, and how that came about.

    >>> import torch, weft
    >>> report = weft.dryrun(lambda x: (x @ x).sum(), torch.ones(64, 64))
    >>> report.memory.peak, report.memory.at_peak["inputs"]
    (32772, 16384)
    """

    device: Device | None
    peak: int
    at_peak: Mapping[str, int]
    """Bytes at the worst moment, by what they are for."""
    most: Mapping[str, int]
    """The most bytes that each kind takes at any moment."""
    largest: tuple[HeldByLine, ...]
    """What is held at the worst moment, largest first."""
    moments: tuple[int, ...]
    held: tuple[tuple[int, ...], ...]
    """At each moment, the bytes of each of `KINDS`."""
    peak_moment: int

    def most_between(self, first: int, end: int) -> tuple[int, ...]:
        """The bytes of each of `KINDS` at the worst moment from one on until before another."""
        start = max(0, bisect_right(self.moments, first) - 1)
        stop = max(start + 1, bisect_right(self.moments, end - 1))
        return max(self.held[start:stop], key=sum, default=(0,) * len(KINDS))


def memory_use(allocations: Sequence[Allocation]) -> MemoryUse:
    """What the fullest device holds."""
    devices = list(dict.fromkeys(each.device for each in allocations)) or [None]
    return max((_of_device(allocations, device) for device in devices), key=lambda use: use.peak)


def kind_of(each: Allocation) -> str:
    """What memory is for."""
    return each.kind or "working"


def _of_device(allocations: Sequence[Allocation], device: Device | None) -> MemoryUse:
    own = [each for each in allocations if each.device == device and each.nbytes]
    changes: list[tuple[int, int, int]] = []
    for each in own:
        kind = KINDS.index(kind_of(each))
        changes.append((each.made, kind, each.nbytes))
        if each.freed is not None:
            changes.append((each.freed, kind, -each.nbytes))
    changes.sort(key=lambda change: change[0])
    now, total, peak, peak_moment = [0] * len(KINDS), 0, 0, 0
    most = [0] * len(KINDS)
    moments, held = [], []
    for moment, kind, nbytes in changes:
        now[kind] += nbytes
        total += nbytes
        most[kind] = max(most[kind], now[kind])
        if total > peak:
            peak, peak_moment = total, moment
        moments.append(moment)
        held.append(tuple(now))
    lasting = [each for each in own if each.made <= peak_moment and (each.freed is None or each.freed > peak_moment)]
    at_peak = dict.fromkeys(KINDS, 0)
    lines: dict[tuple[str, str, Line], list[int]] = {}
    for each in lasting:
        at_peak[kind_of(each)] += each.nbytes
        lines.setdefault((kind_of(each), each.op, each.line), []).append(each.nbytes)
    largest = sorted(
        (HeldByLine(sum(sizes), *key, len(sizes)) for key, sizes in lines.items()), key=lambda h: -h.nbytes
    )
    return MemoryUse(
        device,
        peak,
        {kind: nbytes for kind, nbytes in at_peak.items() if nbytes},
        {kind: nbytes for kind, nbytes in zip(KINDS, most, strict=True) if nbytes},
        tuple(largest),
        tuple(moments),
        tuple(held),
        peak_moment,
    )
