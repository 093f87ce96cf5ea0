"""Contests: contenders for the same work, interleaved in one process, medians with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for one call: the median, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int


def contest(contenders: Mapping[str, Callable[[], object]], *, seconds: float = 1.0, most: int = 400, least: int = 7) -> dict[str, Timing]:
    """Times all contenders in turns, so that a busy machine slows them alike."""
    for call in contenders.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    start = time.perf_counter()
    while len(times[next(iter(times))]) < most:
        done = len(times[next(iter(times))])
        if done >= least and time.perf_counter() - start > seconds * len(contenders):
            break
        for name, call in contenders.items():
            before = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - before)
    return {name: _timing(values) for name, values in times.items()}


def _timing(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return Timing(median, low, high, len(values))
