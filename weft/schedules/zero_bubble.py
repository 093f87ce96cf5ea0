"""Orders that fill waits with weight gradients, which nobody waits for: ZB-H1, ZB-V and DualPipe-V."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import count

from .checking import needs
from .counting import check_counts
from .entry import Entry, Work
from .schedule import Schedule

__all__ = ["dualpipe_v", "zb_h1", "zb_v"]

F, B, W = Work.FORWARD, Work.BACKWARD, Work.WEIGHT


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """1F1B with weight gradients put off: stage `s` is `s` of them behind, and does them while it would wait at the end.

    A third of 1F1B's bubble where all three kinds of work take the same time, and no place keeps more than the first does.

    >>> print(zb_h1(stages=2, microbatches=3))
    zb-h1: 2 stages in 2 places, 3 microbatches; bubble 10.0%, live 2 2
    0: F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2
    1: F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2
    """
    check_counts("zb-h1", stages=stages, microbatches=microbatches)
    rows = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, microbatches)
        row = [Entry(F, stage, m) for m in range(ahead)]
        for m in range(microbatches):
            if ahead + m < microbatches:
                row.append(Entry(F, stage, ahead + m))
            row.append(Entry(B, stage, m))
            if m >= stage:
                row.append(Entry(W, stage, m - stage))
        row += [Entry(W, stage, m) for m in range(max(0, microbatches - stage), microbatches)]
        rows.append(row)
    return Schedule(rows, "zb-h1", most_live=stages)


def zb_v(places: int, microbatches: int) -> Schedule:
    """Two stages in each place, the model going down the places and up again, with weight gradients where one would wait.

    Places wait only for the first microbatch to reach them, and keep what 1F1B's first place keeps.

    >>> schedule = zb_v(places=4, microbatches=8)
    >>> schedule.stage_places, schedule.timeline().length, schedule.most_live
    ((0, 1, 2, 3, 3, 2, 1, 0), 51, 8)
    """
    check_counts("zb-v", places=places, microbatches=microbatches)
    return Schedule(_as_early_as_possible(places, microbatches), "zb-v", most_live=2 * places)


def _as_early_as_possible(places: int, microbatches: int) -> list[list[Entry]]:
    """Each place does at each tick what it can: a backward pass, else a forward pass that memory allows, else a weight gradient."""
    workers = [_Worker(place, places, microbatches) for place in range(places)]
    done: dict[Entry, int] = {}
    for tick in count():
        if len(done) == 6 * places * microbatches:
            break
        for worker in workers:
            entry = worker.following(done, tick)
            if entry is not None:
                done[entry] = tick + 1
    return [worker.row for worker in workers]


class _Worker:
    """One place of a V: its two stages, how far each has come, and the weight gradients that wait."""

    def __init__(self, place: int, places: int, microbatches: int) -> None:
        self._stages, self._own = 2 * places, (place, 2 * places - 1 - place)
        self._microbatches = microbatches
        self._next = {(work, stage): 0 for work in (F, B) for stage in self._own}
        self._put_off: deque[Entry] = deque()
        self._live = 0
        self.row: list[Entry] = []

    def following(self, done: Mapping[Entry, int], tick: int) -> Entry | None:
        """What it does at a tick, given when what was done has ended; None if it can do nothing."""
        entry = self._able(B, done, tick)
        if entry is None and self._live < self._stages:
            entry = self._able(F, done, tick)
        if entry is None and self._put_off:
            entry = self._put_off.popleft()
        if entry is None:
            return None
        if entry.work is not W:
            self._next[entry.work, entry.stage] += 1
        if entry.work is B:
            self._put_off.append(Entry(W, entry.stage, entry.microbatch))
        self._live += (entry.work is F) - (entry.work is W)
        self.row.append(entry)
        return entry

    def _able(self, work: Work, done: Mapping[Entry, int], tick: int) -> Entry | None:
        """The pass of the earliest microbatch that can begin, and of several the one that is further on."""
        coming = [Entry(work, stage, self._next[work, stage]) for stage in self._own]
        able = [
            entry
            for entry in coming
            if entry.microbatch < self._microbatches
            and all(done.get(each, tick + 1) <= tick for each in needs(entry, self._stages))
        ]
        onward = 1 if work is F else -1
        return min(able, key=lambda entry: (entry.microbatch, -onward * entry.stage), default=None)


def dualpipe_v(places: int, microbatches: int) -> Schedule:
    """The V of `zb_v` in which forward passes of one stage and backward passes of the other take turns.

    Next to each other, the two can hide each other's communication. It takes at least `2 * places` microbatches.

    >>> schedule = dualpipe_v(places=2, microbatches=4)
    >>> schedule.stage_places, schedule.live
    ((0, 1, 1, 0), (5, 5))
    """
    check_counts("dualpipe-v", places=places, microbatches=microbatches)
    if microbatches < 2 * places:
        raise ValueError(
            f"a dualpipe-v schedule of {places} places takes at least {2 * places} microbatches, but got {microbatches}: "
            "use more, or zb_v, which takes any number"
        )
    return Schedule([_Turns(place, places, microbatches).row() for place in range(places)], "dualpipe-v")


class _Turns:
    """The row of one place: its two stages, called down and up, and how far each has come."""

    def __init__(self, place: int, places: int, microbatches: int) -> None:
        self._place, self._places, self._microbatches = place, places, microbatches
        self._down, self._up = place, 2 * places - 1 - place
        self._next = {(work, stage): 0 for work in (F, B) for stage in (self._down, self._up)}
        self._put_off: deque[Entry] = deque()
        self._row: list[Entry] = []

    def row(self) -> list[Entry]:
        """Forward passes until the first comes back, turns, and backward passes with weight gradients between."""
        down, up, place, behind = self._down, self._up, self._place, self._places - self._place - 1
        for _ in range(2 * behind):
            self._forward(down)
        for _ in range(place + 1):
            self._forward(down)
            self._forward(up)
        for _ in range(behind):
            self._backward(up, split=True)
            self._weight()
            self._forward(up)
        for _ in range(self._microbatches - 2 * self._places + place + 1):
            self._forward(down)
            self._backward(up)
            self._forward(up)
            self._backward(down)
        for _ in range(behind):
            self._backward(up)
            self._forward(up)
            self._backward(down)
        split_from = place + 1  # of the 2 (place + 1) backward passes that follow, the second half
        for number in range(2 * (place + 1)):
            self._backward(down if number % 2 else up, split=number >= split_from)
        for _ in range(behind):
            self._weight()
            self._backward(down, split=True)
        while self._put_off:
            self._weight()
        return self._row

    def _forward(self, stage: int) -> None:
        self._row.append(Entry(F, stage, self._following(F, stage)))

    def _backward(self, stage: int, *, split: bool = False) -> None:
        entry = Entry(B, stage, self._following(B, stage))
        self._row.append(entry)
        if split:
            self._put_off.append(Entry(W, stage, entry.microbatch))

    def _weight(self) -> None:
        self._row.append(self._put_off.popleft())

    def _following(self, work: Work, stage: int) -> int:
        self._next[work, stage] += 1
        return self._next[work, stage] - 1
