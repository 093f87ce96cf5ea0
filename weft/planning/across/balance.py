"""Sharing out what has to be received, so that no place receives much more than another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from .cells import Place

__all__ = ["Choice", "Shares", "balanced"]

Choice = tuple[tuple[Place, ...], ...]
"""Who can receive something: one of these options, all places of it the same."""

SWEEPS = 16
"""How often all demands are looked at anew, at most; the loads hardly change after a few times."""
SETTLED = 1e-3
"""Changes of less than this part of the highest load are not worth another time."""

_Height = Callable[[list[float]], float]
"""How high an option stands, by the loads of its places."""


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """How much of each demand every option takes, and what places receive in all."""

    of: dict[Choice, list[float]]
    loads: list[float]


def balanced(demands: Mapping[Choice, float], fixed: Sequence[float]) -> Shares:
    """Shares out demands over their options, where places have fixed loads beside.

    One demand after another is poured over its options until they stand equally high, as often as it takes. Where all
    options are one place each, that brings the highest load to its least, and each demand is then left to few of its
    options; else two ways to measure heights are tried.

    >>> balanced({((0,), (1,)): 6.0}, [4.0, 0.0])
    Shares(of={((0,), (1,)): [1.0, 5.0]}, loads=[5.0, 5.0])
    >>> balanced({((0,), (1,)): 2.0, ((1,), (0,)): 2.0}, [0.0, 0.0]).of
    {((0,), (1,)): [2.0, 0.0], ((1,), (0,)): [2.0, 0.0]}
    """
    found = _swept(demands, fixed, [max])
    if all(len(option) == 1 for choice in demands for option in choice):
        few = _gathered(found, fixed)
        return few if max(few.loads, default=0.0) <= (1 + SETTLED) * max(found.loads, default=0.0) else found
    return min(found, _swept(demands, fixed, [_mean, max]), key=lambda shares: max(shares.loads))


def _mean(loads: list[float]) -> float:
    return sum(loads) / len(loads)


def _gathered(shares: Shares, fixed: Sequence[float]) -> Shares:
    """About the same loads, with each demand left to few options: those that few others ask, then whoever has most room.

    Every share is a message of its own, and so is every contribution to it.
    """
    askers = Counter(option for choice in shares.of for option in choice)
    room = [load - before for load, before in zip(shares.loads, fixed, strict=True)]
    loads = list(fixed)
    found: dict[Choice, list[float]] = {}
    for choice, amounts in shares.of.items():
        rest, taken = sum(amounts), [0.0] * len(choice)
        order = sorted(range(len(choice)), key=lambda number: (askers[choice[number]], -room[choice[number][0]]))
        for number in order:
            (place,) = choice[number]
            taken[number] = min(rest, max(0.0, room[place]))
            room[place] -= taken[number]
            rest -= taken[number]
            if rest <= 0:
                break
        taken[order[0]] += rest
        found[choice] = taken
        _add(loads, choice, taken)
    return Shares(found, loads)


def _guessed(demands: Mapping[Choice, float], fixed: Sequence[float]) -> dict[Choice, list[float]]:
    """Shares as if all places came to one level: right where all demands of a kind are alike."""
    askers = Counter(place for choice in demands for option in choice for place in option)
    level = (sum(fixed) + sum(amount * len(choice[0]) for choice, amount in demands.items())) / max(1, len(fixed))
    room = {place: max(0.0, level - fixed[place]) / count for place, count in askers.items()}
    found = {}
    for choice, amount in demands.items():
        weights = [min(room[place] for place in option) for option in choice]
        total = sum(weights) or 1.0
        found[choice] = [amount * weight / total for weight in weights]
    return found


def _swept(demands: Mapping[Choice, float], fixed: Sequence[float], heights: Sequence[_Height]) -> Shares:
    loads = list(fixed)
    shares = _guessed(demands, fixed)
    for choice, guess in shares.items():
        _add(loads, choice, guess)
    if max(loads, default=0.0) * len(loads) <= (1 + SETTLED) * sum(loads):  # the highest is no higher than the mean
        return Shares(shares, loads)
    for height in heights:
        for _ in range(SWEEPS):
            moved = 0.0
            for choice, amount in demands.items():
                before = shares[choice]
                _add(loads, choice, [-share for share in before])
                shares[choice] = _poured(amount, [height([loads[p] for p in option]) for option in choice])
                _add(loads, choice, shares[choice])
                moved = max(moved, *(abs(x - y) for x, y in zip(before, shares[choice], strict=True)))
            if moved <= SETTLED * max(loads, default=0.0):
                break
    return Shares(shares, loads)


def _add(loads: list[float], choice: Choice, shares: Sequence[float]) -> None:
    for option, share in zip(choice, shares, strict=True):
        for place in option:
            loads[place] += share


def _poured(amount: float, heights: Sequence[float]) -> list[float]:
    """An amount, shared so that those that take some come to one level.

    >>> _poured(6.0, [4.0, 0.0, 9.0])
    [1.0, 5.0, 0.0]
    """
    level, total = math.inf, amount
    for taking, height in enumerate(sorted(heights), 1):
        if level <= height:
            break
        total += height
        level = total / taking
    return [max(0.0, level - height) for height in heights]
