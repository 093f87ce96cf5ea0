"""`simplified`: a smaller problem with the same best choices, whatever a byte is worth.

A choice is left out where another is never slower, whatever its neighbours choose, and holds no more. A variable whose choices
all hold the same, and that has two neighbours at most, is taken out: for each pair of their choices its best one is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from .problem import Assignment, Problem, Table

__all__ = ["Simplified", "simplified"]


@dataclass(slots=True)
class _TakenOut:
    """A variable that is gone, its neighbours, and its best choice for theirs."""

    variable: int
    beside: tuple[int, ...]
    best: NDArray[np.intp]


@final
class Simplified:
    """A problem, and how a choice of the simpler one becomes a choice of the whole."""

    def __init__(self, whole: Problem) -> None:
        self.kept = [np.flatnonzero(mask) for mask in _undominated(whole)]
        self.unary = [table[at] for table, at in zip(whole.unary, self.kept, strict=True)]
        self.memory = [table[at] for table, at in zip(whole.memory, self.kept, strict=True)]
        self.beside: list[dict[int, Table]] = [{} for _ in self.kept]
        for (i, j), table in whole.pairs.items():
            small = table[np.ix_(self.kept[i], self.kept[j])]
            self.beside[i][j], self.beside[j][i] = small, small.T
        self._gone: list[_TakenOut] = []
        self.seconds = self.bytes = 0.0
        """What variables take and hold that are gone altogether."""
        self._take_out_all()
        gone = {each.variable for each in self._gone}
        self.left = [variable for variable in range(len(self.kept)) if variable not in gone]
        self.problem = Problem()
        for variable in self.left:
            self.problem.variable(self.unary[variable].tolist(), self.memory[variable].tolist())
        for at, variable in enumerate(self.left):
            for other, table in self.beside[variable].items():
                if other > variable:
                    self.problem.couple(at, self.left.index(other), table)

    def _take_out_all(self) -> None:
        waiting = set(range(len(self.kept)))
        gone: set[int] = set()
        while waiting:
            variable = waiting.pop()
            around = self.beside[variable]
            if variable in gone or len(around) > 2 or np.ptp(self.memory[variable]):
                continue
            gone.add(variable)
            waiting.update(around)
            self._take_out(variable)

    def _take_out(self, variable: int) -> None:
        around = sorted(self.beside[variable])
        alone = self.unary[variable]
        self.bytes += float(self.memory[variable][0])
        tables = [self.beside[variable][other] for other in around]
        for other in around:
            del self.beside[other][variable]
        if not around:
            total = alone
            self.seconds += float(total.min())
        elif len(around) == 1:
            total = alone[:, None] + tables[0]
            self.unary[around[0]] = self.unary[around[0]] + total.min(axis=0)
        else:
            total = alone[:, None, None] + tables[0][:, :, None] + tables[1][:, None, :]
            first, second = around
            least = total.min(axis=0)
            known = self.beside[first].get(second)
            least = least if known is None else least + known
            self.beside[first][second], self.beside[second][first] = least, least.T
        self._gone.append(_TakenOut(variable, tuple(around), np.asarray(total.argmin(axis=0))))

    def whole(self, choice: Assignment) -> Assignment:
        """The choice for all variables."""
        found = [0] * len(self.kept)
        for variable, at in zip(self.left, choice, strict=True):
            found[variable] = at
        for gone in reversed(self._gone):
            found[gone.variable] = int(gone.best[tuple(found[other] for other in gone.beside)])
        return tuple(int(at[choice]) for at, choice in zip(self.kept, found, strict=True))


def simplified(problem: Problem) -> Simplified:
    """The problem without what is never better and without what is decided by its neighbours.

    >>> whole = Problem()
    >>> x, y = whole.variable([0.0, 1.0, 5.0]), whole.variable([0.5, 0.0], [8.0, 4.0])
    >>> whole.couple(x, y, np.array([[0.0, 3.0], [3.0, 0.0], [3.0, 3.0]]))
    >>> simpler = simplified(whole)
    >>> len(simpler.problem.unary), simpler.whole((0,)), simpler.whole((1,))
    (1, (0, 0), (1, 1))
    """
    return Simplified(problem)


def _undominated(problem: Problem) -> list[NDArray[np.bool_]]:
    """For each variable, the choices that may be in a best solution for some price of bytes."""
    kept = [np.isfinite(table) for table in problem.unary]
    beside: list[list[tuple[int, Table]]] = [[] for _ in kept]
    for (i, j), table in problem.pairs.items():
        beside[i].append((j, table))
        beside[j].append((i, table.T))
    waiting = set(range(len(kept)))
    while waiting:
        variable = waiting.pop()
        at = np.flatnonzero(kept[variable])
        if len(at) < 2:
            continue
        alone, held = problem.unary[variable][at], problem.memory[variable][at]
        worse = alone[:, None] - alone[None, :]  # at least so much slower is a than b
        for other, table in beside[variable]:
            rows = table[np.ix_(at, np.flatnonzero(kept[other]))]
            worse = worse + (rows[:, None, :] - rows[None, :, :]).min(axis=2)
        beaten = _beaten(worse, held[:, None] - held[None, :])
        if beaten.any():
            kept[variable][at[beaten]] = False
            waiting.update(other for other, _ in beside[variable])
    return kept


def _beaten(slower: Table, larger: Table) -> NDArray[np.bool_]:
    """The choices that another beats; of equal ones the first stays."""
    earlier = np.arange(len(slower))[None, :] < np.arange(len(slower))[:, None]
    never_better = (slower >= 0) & (larger >= 0)
    beats = never_better & ((slower > 1e-15) | (larger > 0) | earlier)
    np.fill_diagonal(beats, val=False)
    return np.asarray(beats.any(axis=1))
