"""`solve`: the best choices of a problem, variable by variable, exactly; or a bound where the tables would be too large.

A problem is simplified first. Then a variable is taken out at a time: for all choices of its neighbours, the best of its own.
Programs are long and thin, so few neighbours are left at a time. Where there are too many, what a variable takes is looked at in groups of
neighbours: each group may choose otherwise, so what is found is a lower bound, and the solution is mended choice by choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from .problem import Assignment, Problem, Table
from .simplifying import simplified

__all__ = ["Solution", "solve"]

_LARGEST = 1 << 24
"""The elements of the largest table."""


@final
@dataclass(frozen=True, slots=True)
class Solution:
    """A choice, what it takes, and what every choice takes at least."""

    choice: Assignment
    seconds: float
    bound: float


@dataclass(slots=True)
class _Factor:
    """What some variables take together, one axis of the table for each."""

    variables: tuple[int, ...]
    table: Table


def solve(problem: Problem, largest: int = _LARGEST) -> Solution:
    """The best choice of each variable.

    >>> problem = Problem()
    >>> x, y = problem.variable([0.0, 1.0]), problem.variable([2.0, 0.0])
    >>> problem.couple(x, y, np.array([[0.0, 3.0], [3.0, 0.0]]))
    >>> solve(problem)
    Solution(choice=(1, 1), seconds=1.0, bound=1.0)
    """
    simpler = simplified(problem)
    small = simpler.problem
    factors = [_Factor((variable,), table) for variable, table in enumerate(small.unary)]
    factors += [_Factor(pair, table) for pair, table in small.pairs.items()]
    bound, buckets = _eliminated(factors, [len(table) for table in small.unary], largest)
    choice = simpler.whole(tuple(_traced(buckets, len(small.unary))))
    bound += simpler.seconds
    seconds = problem.seconds(choice)
    if seconds > bound * (1 + 1e-9):
        choice = _mended(problem, choice)
        seconds = problem.seconds(choice)
    return Solution(choice, seconds, min(bound, seconds))


def _eliminated(
    factors: list[_Factor], sizes: list[int], largest: int
) -> tuple[float, list[tuple[int, list[_Factor]]]]:
    """Takes out all variables: the bound, and what each took into account when it was taken out."""
    around: dict[int, set[int]] = {variable: set() for variable in range(len(sizes))}
    for factor in factors:
        for variable in factor.variables:
            around[variable] |= set(factor.variables)
    buckets: list[tuple[int, list[_Factor]]] = []
    constant = 0.0
    while around:
        variable = min(around, key=lambda v: (math.prod(sizes[each] for each in around[v]), v))
        del around[variable]
        bucket = [factor for factor in factors if variable in factor.variables]
        factors = [factor for factor in factors if variable not in factor.variables]
        buckets.append((variable, bucket))
        for group in _groups(bucket, sizes, largest):
            made = _minimum(group, variable)
            if made.variables:
                factors.append(made)
            else:
                constant += float(made.table)
        for other in {v for factor in bucket for v in factor.variables} - {variable}:
            around[other] = {v for factor in factors if other in factor.variables for v in factor.variables}
    return constant, buckets


def _groups(bucket: list[_Factor], sizes: list[int], largest: int) -> list[list[_Factor]]:
    """A variable's factors in groups whose tables are not too large; one group where all of it is not."""
    groups: list[tuple[set[int], list[_Factor]]] = []
    for factor in sorted(bucket, key=lambda factor: -factor.table.size):
        for variables, members in groups:
            size = 1
            for v in variables | set(factor.variables):
                size *= sizes[v]
            if size <= largest:
                variables |= set(factor.variables)
                members.append(factor)
                break
        else:
            groups.append((set(factor.variables), [factor]))
    return [members for _, members in groups]


def _minimum(group: list[_Factor], variable: int) -> _Factor:
    around = sorted({v for factor in group for v in factor.variables} - {variable})
    order = (variable, *around)
    total = _summed(group, order)
    return _Factor(tuple(around), total.min(axis=0))


def _summed(group: list[_Factor], order: tuple[int, ...]) -> Table:
    total: Table = np.zeros((1,) * len(order))
    for factor in group:
        places = [order.index(v) for v in factor.variables]
        table = np.transpose(factor.table, np.argsort(places))
        shape = [1] * len(order)
        for place, size in zip(sorted(places), table.shape, strict=True):
            shape[place] = size
        total = total + table.reshape(shape)
    return total


def _traced(buckets: list[tuple[int, list[_Factor]]], count: int) -> list[int]:
    """The choices, from the last variable that was taken out to the first."""
    found = [0] * count
    for variable, bucket in reversed(buckets):
        total: Table = np.zeros(1)
        for factor in bucket:
            at = tuple(slice(None) if v == variable else found[v] for v in factor.variables)
            total = total + factor.table[at]
        found[variable] = int(np.argmin(total))
    return found


def _mended(problem: Problem, choice: Assignment) -> Assignment:
    """A choice in which no variable alone can do better."""
    found = list(choice)
    beside: list[list[tuple[int, Table]]] = [[] for _ in found]
    for (i, j), table in problem.pairs.items():
        beside[i].append((j, table))
        beside[j].append((i, table.T))
    better = True
    while better:
        better = False
        for variable, alone in enumerate(problem.unary):
            total = alone.copy()
            for other, table in beside[variable]:
                total += table[:, found[other]]
            best = int(np.argmin(total))
            if total[best] < total[found[variable]] - 1e-15:
                found[variable], better = best, True
    return tuple(found)
