"""`Schedule`: which place of a pipeline does what, in which order; checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from ..frozen import Frozen
from .checking import check_complete, check_memory, check_order, check_runs, stage_places
from .entry import Entry
from .timeline import Timeline, timeline_of

__all__ = ["Schedule"]

Row = str | Iterable[Entry | str]


@final
class Schedule(Frozen):
    """A table with one row for each place: what it does, one after another. A place is one of the pipeline's meshes.

    A row is entries, or their text. `B` is the whole backward pass of a microbatch in a stage, unless the same row has a
    `W` for it: then `B` is the gradient of what came in, and `W` that of the weights. A table that is incomplete, out of
    order, stands still or keeps more than `most_live` microbatches in a place is refused, by the entry that is wrong.

    >>> schedule = Schedule(["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"], most_live=2)
    >>> schedule.places, schedule.stages, schedule.microbatches, schedule.live
    (2, 2, 2, (2, 1))
    >>> Schedule(["F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"])
    Traceback (most recent call last):
    weft.errors.ScheduleError: the schedule stands still: row 0 waits at B0.0 for B1.0, row 1 waits at F1.1 for F0.1...
    """

    __slots__ = ("live", "most_live", "name", "rows", "stage_places")
    __match_args__ = ("rows", "name", "most_live")
    rows: tuple[tuple[Entry, ...], ...]
    name: str
    """What it is called; a name has no other meaning."""
    most_live: int | None
    """How many microbatches a place may keep for their backward pass, counted for each of its stages."""
    stage_places: tuple[int, ...]
    """The place of each stage."""
    live: tuple[int, ...]
    """The most microbatches that each place keeps, counted for each of its stages."""

    def __init__(self, rows: Sequence[Row], name: str = "", most_live: int | None = None) -> None:
        if isinstance(rows, str) or not rows:
            raise ValueError(f"a schedule takes one row for each place, but got {rows!r}")
        if most_live is not None and (isinstance(most_live, bool) or not isinstance(most_live, int) or most_live < 1):
            raise ValueError(f"most_live is a whole number from 1 on, or None, but got {most_live!r}")
        table = tuple(_row(row) for row in rows)
        places = stage_places(table)
        check_complete(table, len(places))
        check_order(table)
        check_runs(table)
        live = check_memory(table, most_live)
        self._set(rows=table, name=str(name), most_live=most_live, stage_places=places, live=live)

    @property
    def places(self) -> int:
        """How many meshes it takes."""
        return len(self.rows)

    @property
    def stages(self) -> int:
        """How many stages the model is cut into."""
        return len(self.stage_places)

    @property
    def microbatches(self) -> int:
        """How many microbatches a batch is cut into."""
        return 1 + max(entry.microbatch for entry in self.rows[0])

    def timeline(self, forward: float = 1, backward: float = 1, weight: float = 1, transfer: float = 0) -> Timeline:
        """When everything happens, if these are the times of the three kinds of work and of moving an activation.

        A backward pass that is not split takes `backward + weight`.

        >>> from weft.schedules import gpipe
        >>> gpipe(stages=4, microbatches=4).timeline().length  # 7 times 3
        21
        """
        return timeline_of(self.rows, forward, backward, weight, transfer)

    @property
    def bubble(self) -> float:
        """The part of the time that places wait, where all kinds of work take the same time and moving takes none.

        >>> from weft.schedules import one_f_one_b, zb_h1
        >>> round(one_f_one_b(stages=4, microbatches=8).bubble, 3), round(zb_h1(stages=4, microbatches=8).bubble, 3)
        (0.273, 0.111)
        """
        return self.timeline().bubble

    def __repr__(self) -> str:
        rows = [" ".join(map(str, row)) for row in self.rows]
        more = (f", name={self.name!r}" if self.name else "") + (
            f", most_live={self.most_live}" if self.most_live else ""
        )
        return f"Schedule({rows!r}{more})"

    def __str__(self) -> str:
        kept = " ".join(map(str, self.live))
        head = (
            f"{self.name or 'schedule'}: {self.stages} stages in {self.places} places, {self.microbatches} microbatches"
        )
        return f"{head}; bubble {self.bubble:.1%}, live {kept}\n" + "\n".join(
            f"{place}: {' '.join(map(str, row))}" for place, row in enumerate(self.rows)
        )


def _row(row: Row) -> tuple[Entry, ...]:
    entries = row.split() if isinstance(row, str) else list(row)
    for entry in entries:
        if not isinstance(entry, (Entry, str)):
            raise TypeError(f"a row of a schedule has entries, or their text such as 'F0.1', but got {entry!r}")
    return tuple(Entry.parse(entry) if isinstance(entry, str) else entry for entry in entries)
