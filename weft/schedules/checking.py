"""What a table must be, so that it runs: complete, in order, never standing still, and within its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import ScheduleError
from .entry import Entry, Work

__all__ = ["check_complete", "check_memory", "check_order", "check_runs", "kept_until", "needs", "stage_places"]

Rows = Sequence[Sequence[Entry]]


def stage_places(rows: Rows) -> tuple[int, ...]:
    """The place of each stage: the row that has its entries.

    >>> stage_places([[Entry.parse("F1.0")], [Entry.parse("F0.0")]])
    (1, 0)
    """
    found: dict[int, tuple[int, Entry]] = {}
    for place, row in enumerate(rows):
        if not row:
            raise ScheduleError(f"row {place} is empty: every place has at least one stage")
        for entry in row:
            other, first = found.setdefault(entry.stage, (place, entry))
            if other != place:
                raise ScheduleError(
                    f"stage {entry.stage} is in two places: {first} is in row {other}, {entry} in row {place}. "
                    "A stage has its weights in one place"
                )
    for stage in range(max(found) + 1):
        if stage not in found:
            raise ScheduleError(f"stage {stage} is in no row, but stage {max(found)} is: number stages from 0 on")
    return tuple(found[stage][0] for stage in range(len(found)))


def check_complete(rows: Rows, stages: int) -> None:
    """Raises unless every stage does the forward and the backward pass of every microbatch, once."""
    seen: set[Entry] = set()
    for place, row in enumerate(rows):
        for entry in row:
            if entry in seen:
                raise ScheduleError(f"{entry} stands twice in row {place}: every piece of work is done once")
            seen.add(entry)
    microbatches = 1 + max(entry.microbatch for entry in seen)
    for stage in range(stages):
        for microbatch in range(microbatches):
            for work in (Work.FORWARD, Work.BACKWARD):
                wanted = Entry(work, stage, microbatch)
                if wanted not in seen:
                    raise ScheduleError(
                        f"{wanted} is missing: every stage does the forward and the backward pass of every microbatch, "
                        f"and there are {microbatches}"
                    )


def check_order(rows: Rows) -> None:
    """Raises for an entry that stands before one of the same row that it needs."""
    for place, row in enumerate(rows):
        at = {entry: position for position, entry in enumerate(row)}
        for position, entry in enumerate(row):
            for earlier in needs(entry, stages=0):
                if at.get(earlier, -1) > position:
                    raise ScheduleError(
                        f"{entry} stands before {earlier} in row {place}, but needs it: put {earlier} first"
                    )


def needs(entry: Entry, stages: int) -> Iterator[Entry]:
    """What has to be done before an entry, in its own place and in others, of a pipeline with so many stages.

    >>> [str(each) for each in needs(Entry.parse("B1.0"), stages=3)]
    ['F1.0', 'B2.0']
    """
    stage, microbatch = entry.stage, entry.microbatch
    match entry.work:
        case Work.FORWARD:
            if stage:
                yield Entry(Work.FORWARD, stage - 1, microbatch)
        case Work.BACKWARD:
            yield Entry(Work.FORWARD, stage, microbatch)
            if stage + 1 < stages:
                yield Entry(Work.BACKWARD, stage + 1, microbatch)
        case Work.WEIGHT:
            yield Entry(Work.BACKWARD, stage, microbatch)


def check_runs(rows: Rows) -> None:
    """Raises if places would come to wait for each other, and says at which entries."""
    stages = 1 + max(entry.stage for row in rows for entry in row)
    done: set[Entry] = set()
    at = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for place, row in enumerate(rows):
            while at[place] < len(row) and all(each in done for each in needs(row[at[place]], stages)):
                done.add(row[at[place]])
                at[place] += 1
                moved = True
    waiting = []
    for place, row in enumerate(rows):
        if at[place] < len(row):
            missing = next(each for each in needs(row[at[place]], stages) if each not in done)
            waiting.append(f"row {place} waits at {row[at[place]]} for {missing}")
    if waiting:
        raise ScheduleError(
            f"the schedule stands still: {', '.join(waiting)}. Put what is waited for before what waits"
        )


def kept_until(row: Sequence[Entry]) -> dict[Entry, Entry]:
    """For each forward pass of a row, the entry after which nothing is kept of it: its weight gradient, else its backward.

    >>> row = [Entry.parse(text) for text in "F0.0 B0.0 W0.0".split()]
    >>> {str(first): str(last) for first, last in kept_until(row).items()}
    {'F0.0': 'W0.0'}
    """
    last: dict[Entry, Entry] = {}
    for entry in row:
        if entry.work is not Work.FORWARD:
            last[Entry(Work.FORWARD, entry.stage, entry.microbatch)] = entry
    return last


def check_memory(rows: Rows, most_live: int | None) -> tuple[int, ...]:
    """The most that each place keeps; raises for the entry with which that is more than `most_live`."""
    peaks = []
    for place, row in enumerate(rows):
        ends = set(kept_until(row).values())
        live = peak = 0
        for entry in row:
            if entry.work is Work.FORWARD:
                live += 1
                peak = max(peak, live)
                if most_live is not None and live > most_live:
                    raise ScheduleError(
                        f"{entry} in row {place} would be number {live} of the microbatches that are kept for their "
                        f"backward pass there, but most_live is {most_live}: put backward passes (or weight gradients) before "
                        f"it, or allow more"
                    )
            elif entry in ends:
                live -= 1
        peaks.append(peak)
    return tuple(peaks)
