"""Sharing out what has to be received, so that no place receives much more than another."""

from __future__ import annotations

import math
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
    options are one place each, that brings the highest load to its least; else two ways to measure heights are tried.

    >>> balanced({((0,), (1,)): 6.0}, [4.0, 0.0])
    Shares(of={((0,), (1,)): [1.0, 5.0]}, loads=[5.0, 5.0])
    """
    found = _swept(demands, fixed, [max])
    if all(len(option) == 1 for choice in demands for option in choice):
        return found
    return min(found, _swept(demands, fixed, [_mean, max]), key=lambda shares: max(shares.loads))


def _mean(loads: list[float]) -> float:
    return sum(loads) / len(loads)


def _swept(demands: Mapping[Choice, float], fixed: Sequence[float], heights: Sequence[_Height]) -> Shares:
    loads = list(fixed)
    shares = {choice: [0.0] * len(choice) for choice in demands}
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
