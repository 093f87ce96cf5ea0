"""Timing what several processes do together, in turns."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping

import torch

from ..runtime.processes import world
from ..runtime.processes.group import group_of
from ..runtime.processes.renewal import store_of_calls

__all__ = ["agreed", "in_turns"]


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, wire: torch.device) -> dict[str, float]:
    """For each of several things, the time of several rounds that a quarter of them comes below, on the slowest process.

    Whatever else the machine does only makes them longer. All have their turn in each round, in an order of its own, so that it
    does so to all alike, and what the one before leaves in caches, too.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name in random.Random(number).sample(list(calls), len(calls)):
            agreed(0.0)
            start = time.perf_counter()
            calls[name]()
            if wire.type == "cuda":
                torch.cuda.synchronize()
            spent = max(agreed(time.perf_counter() - start))
            if number >= 2:  # what is first done once is not counted
                times[name].append(spent)
    return {name: sorted(each)[len(each) // 4] for name, each in times.items()}


def agreed(mine: float) -> list[float]:
    """What each process says, when all have said it.

    >>> agreed(1.5)
    [1.5]
    """
    here = world.current()
    if here.count == 1:
        return [mine]
    everyone = tuple(range(here.count))
    store, number = store_of_calls(), group_of(everyone).next_number()
    store.set(f"links {number} {here.process}", json.dumps(mine))
    return [float(json.loads(store.get(f"links {number} {process}"))) for process in everyone]
