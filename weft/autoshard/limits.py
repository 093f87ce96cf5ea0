"""`solve_within`: the best choice that holds no more than a limit, and how far from the best it can be.

A byte is given a price. The higher it is, the less the best choice holds; and for every price, what the best choice takes with
its bytes paid for, less the price of the whole limit, is a lower bound. Where the last bytes leave a gap, the problem is cut in
two: some variable holds much, or it holds little.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import final

import numpy as np

from .elimination import Solution, solve
from .problem import Assignment, Problem
from .simplifying import simplified

__all__ = ["Limited", "solve_within"]

_PRICES = 24
"""How many prices are tried for one problem."""
_CUTS = 12
"""How often a problem is cut in two at most."""
_CLOSE = 0.005
"""The gap that is left alone."""


@final
@dataclass(frozen=True, slots=True)
class Limited:
    """A choice within a limit, a lower bound, and what a byte is worth where the limit binds."""

    choice: Assignment
    seconds: float
    bound: float
    bytes: float
    price: float

    @property
    def binds(self) -> bool:
        """Whether more memory would allow a better choice."""
        return self.price > 0


@dataclass(slots=True)
class _TriedPrices:
    """What prices of bytes have shown of one problem."""

    bound: float
    over: Assignment | None = None
    """The choice that holds too much by the least."""
    under: Assignment | None = None
    price: float = 0.0


def solve_within(whole: Problem, limit: float, cuts: int = _CUTS) -> Limited | None:
    """The best choice that holds at most `limit` bytes; None where every choice holds more.

    `cuts` says how often a gap between the choice and the bound is worth another look.

    >>> problem = Problem()
    >>> large = problem.variable([1.0, 2.0], [8.0, 4.0])
    >>> small = problem.variable([1.0, 5.0], [8.0, 4.0])
    >>> found = solve_within(problem, 12)
    >>> found.choice, found.seconds, found.bytes, found.binds
    ((1, 0), 3.0, 12.0, True)
    """
    if least_bytes(whole) > limit:
        return None
    simpler = simplified(whole)
    problem, limit = simpler.problem, limit - simpler.bytes
    best: Solution | None = None
    order = count()
    waiting: list[tuple[float, int, Problem, _TriedPrices]] = []
    price = 0.0

    def look(part: Problem) -> None:
        nonlocal best, price
        tried = _tried(part, limit)
        if tried.under is not None:
            seconds = problem.seconds(tried.under)
            if best is None or seconds < best.seconds:
                best, price = Solution(tried.under, seconds, tried.bound), tried.price
        heapq.heappush(waiting, (tried.bound, next(order), part, tried))

    look(problem)
    for _ in range(cuts):
        bound, _, part, tried = waiting[0]
        assert best is not None
        if (
            best.seconds - bound <= _CLOSE * (best.seconds + simpler.seconds)
            or tried.over is None
            or tried.under is None
        ):
            break
        heapq.heappop(waiting)
        for half in _halves(part, tried.over, tried.under):
            if least_bytes(half) <= limit:
                look(half)
        if not waiting:
            break
    assert best is not None
    bound = min([best.seconds, *(each[0] for each in waiting)])
    choice = simpler.whole(best.choice)
    return Limited(choice, whole.seconds(choice), bound + simpler.seconds, whole.bytes(choice), price)


def least_bytes(problem: Problem) -> float:
    """What every choice holds at least."""
    pairs = zip(problem.memory, problem.unary, strict=True)
    return float(sum(held[np.isfinite(seconds)].min() for held, seconds in pairs))


def _tried(problem: Problem, limit: float) -> _TriedPrices:
    free = solve(problem)
    if problem.bytes(free.choice) <= limit:
        return _TriedPrices(free.bound, None, free.choice)
    found = _TriedPrices(free.bound, free.choice)
    low, high = 0.0, free.seconds / limit
    for _ in range(_PRICES):
        price = high if found.under is None else (low + high) / 2
        solution = solve(problem.weighed(price))
        found.bound = max(found.bound, solution.bound - price * limit)
        if problem.bytes(solution.choice) <= limit:
            if found.under is None or problem.seconds(solution.choice) <= problem.seconds(found.under):
                found.under, found.price = solution.choice, price
            high = price
        else:
            found.over = solution.choice
            low, high = price, high if found.under is not None else 8 * price
        if found.under is not None:
            seconds = problem.seconds(found.under)
            if seconds - found.bound <= _CLOSE * seconds or high - low < 1e-3 * high:
                break
    if found.under is None:  # what holds least
        found.under = tuple(
            int(np.argmin(np.where(np.isfinite(seconds), held, np.inf)))
            for held, seconds in zip(problem.memory, problem.unary, strict=True)
        )
        found.price = high
    return found


def _halves(problem: Problem, over: Assignment, under: Assignment) -> list[Problem]:
    """The problem, cut where the choice that holds too much and the one that does not differ most."""
    differ = [abs(held[a] - held[b]) for held, a, b in zip(problem.memory, over, under, strict=True)]
    variable = int(np.argmax(differ))
    held = problem.memory[variable]
    if not differ[variable]:
        return []
    little = held <= min(held[over[variable]], held[under[variable]])
    return [problem.restricted(variable, little), problem.restricted(variable, ~little)]
