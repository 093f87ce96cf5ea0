"""`contest`: contenders for the same work, timed in turns; medians with their spread."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["Contender", "Elsewhere", "Timing", "contest"]


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """What repeated measurements say.

        >>> Timing.of([3.0, 1.0, 2.0])
        Timing(median=2.0, low=1.0, high=3.0, rounds=3)
        """
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0], 1)
        low, median, high = statistics.quantiles(seconds, n=4)
        return cls(median, max(low, min(seconds)), min(high, max(seconds)), len(seconds))


@final
@dataclass(frozen=True, slots=True)
class Contender:
    """A call to time, and what has to happen before each call without counting."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None


@final
@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A call that another process makes: it says how many seconds that took there."""

    seconds: Callable[[], float]


def contest(
    contenders: Mapping[str, Callable[[], object] | Contender | Elsewhere],
    *,
    seconds: float = 1.0,
    most: int = 400,
    least: int = 7,
    warm: int = 2,
    repeat: int = 1,
) -> dict[str, Timing]:
    """Times all contenders in turns, so that a busy machine slows them alike; each turn in another order, so that what one
    leaves to be done after its call (memory to free, threads to settle) is not always the same other's to pay.

    `seconds` is what a contender may take on average; the turns lie between `least` and `most`, after `warm` uncounted.
    `repeat` calls make up a turn: more than one for calls so short that the turns of the others would chill their caches.

    >>> timings = contest({"sum": lambda: sum(range(9)), "max": lambda: max(range(9))}, seconds=0.01)
    >>> sorted(timings), timings["sum"].low <= timings["sum"].median <= timings["sum"].high
    (['max', 'sum'], True)
    """
    field = {name: Contender(who) if callable(who) else who for name, who in contenders.items()}
    for who in field.values():
        for _ in range(warm):
            _seconds(who, 1)
    times: dict[str, list[float]] = {name: [] for name in field}
    end = time.perf_counter() + seconds * len(field)
    for turn in range(most):
        if turn >= least and time.perf_counter() > end:
            break
        for name in random.Random(turn).sample(sorted(field), len(field)):
            times[name].append(_seconds(field[name], repeat))
    return {name: Timing.of(values) for name, values in times.items()}


def _seconds(who: Contender | Elsewhere, repeat: int) -> float:
    """How long one call takes; letting go of its result counts, as it does in a program."""
    if isinstance(who, Elsewhere):
        return sum(who.seconds() for _ in range(repeat)) / repeat
    if who.prepare is not None:
        who.prepare()
    call = who.call
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - start) / repeat
