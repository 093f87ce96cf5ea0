"""`Timeline`: when each entry of a table begins and ends, and how long places wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from .checking import needs
from .entry import Entry, Work

__all__ = ["Span", "Timeline", "timeline_of"]


@final
@dataclass(frozen=True, slots=True)
class Span:
    """One entry, in its place, from its start to its end."""

    entry: Entry
    place: int
    start: float
    end: float
    is_split: bool
    """Whether a weight gradient is an entry of its own for this microbatch and stage."""


@final
@dataclass(frozen=True, slots=True)
class Timeline:
    """When everything of a schedule happens, in the order in which it begins.

    >>> from weft.schedules import one_f_one_b
    >>> timeline = one_f_one_b(stages=2, microbatches=2).timeline(forward=1, backward=1, weight=1)
    >>> timeline.length, timeline.busy, round(timeline.bubble, 3)
    (9, (6, 6), 0.333)
    """

    spans: tuple[Span, ...]
    places: int

    @property
    def length(self) -> float:
        """The time from the first start to the last end."""
        return max(span.end for span in self.spans)

    @property
    def busy(self) -> tuple[float, ...]:
        """How long each place works."""
        return tuple(
            sum(span.end - span.start for span in self.spans if span.place == place) for place in range(self.places)
        )

    @property
    def bubble(self) -> float:
        """The part of the time that places wait."""
        return 1 - sum(self.busy) / (self.places * self.length)


def timeline_of(
    rows: Sequence[Sequence[Entry]], forward: float, backward: float, weight: float, transfer: float
) -> Timeline:
    """Every place does its row as early as what it needs is there."""
    for name, value in (("forward", forward), ("backward", backward), ("weight", weight)):
        if not value > 0:
            raise ValueError(f"{name} is a time above 0, but got {value!r}")
    if transfer < 0:
        raise ValueError(f"transfer is a time from 0 on, but got {transfer!r}")
    stages = 1 + max(entry.stage for row in rows for entry in row)
    split = {(e.stage, e.microbatch) for row in rows for e in row if e.work is Work.WEIGHT}
    took = {Work.FORWARD: forward, Work.BACKWARD: backward, Work.WEIGHT: weight}
    done: dict[Entry, Span] = {}
    at = [0] * len(rows)
    free: list[float] = [0] * len(rows)
    while len(done) < sum(map(len, rows)):
        for place, row in enumerate(rows):
            while at[place] < len(row) and all(each in done for each in needs(row[at[place]], stages)):
                entry = row[at[place]]
                ready = (done[each].end + transfer * (done[each].place != place) for each in needs(entry, stages))
                is_split = (entry.stage, entry.microbatch) in split
                whole = entry.work is Work.BACKWARD and not is_split
                start = max([free[place], *ready])
                free[place] = start + (backward + weight if whole else took[entry.work])
                done[entry] = Span(entry, place, start, free[place], is_split)
                at[place] += 1
    return Timeline(tuple(sorted(done.values(), key=lambda span: (span.start, span.place))), len(rows))
