"""`Problem`: things to choose, what each choice takes and holds, and what pairs of choices take together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Assignment", "Problem", "Table"]

Table = NDArray[np.float64]
Assignment = tuple[int, ...]
"""For each variable, the number of its choice."""


@final
@dataclass(slots=True)
class Problem:
    """Variables with a few choices each; the sum of all prices is to be least.

    >>> problem = Problem()
    >>> x, y = problem.variable([0.0, 1.0]), problem.variable([0.5, 0.0])
    >>> problem.couple(x, y, np.array([[0.0, 3.0], [3.0, 0.0]]))
    >>> problem.seconds((0, 0)), problem.seconds((1, 1))
    (0.5, 1.0)
    """

    unary: list[Table] = field(default_factory=list)
    """Seconds."""
    memory: list[Table] = field(default_factory=list)
    """Bytes that the choice holds throughout."""
    pairs: dict[tuple[int, int], Table] = field(default_factory=dict)
    """Seconds of two variables, the first of which has the smaller number."""

    def variable(self, seconds: Sequence[float], memory: Sequence[float] | None = None) -> int:
        """A new variable, by its number."""
        self.unary.append(np.array(seconds, dtype=np.float64))
        self.memory.append(np.zeros(len(seconds)) if memory is None else np.array(memory, dtype=np.float64))
        return len(self.unary) - 1

    def couple(self, first: int, second: int, seconds: Table) -> None:
        """Adds what two variables take together; one and the same takes it for each of its choices."""
        if first == second:
            self.unary[first] = self.unary[first] + np.diagonal(seconds)
        elif first > second:
            self.couple(second, first, seconds.T)
        else:
            known = self.pairs.get((first, second))
            self.pairs[first, second] = seconds.copy() if known is None else known + seconds

    def seconds(self, choice: Assignment) -> float:
        """What a choice takes."""
        alone = sum(table[at] for table, at in zip(self.unary, choice, strict=True))
        return float(alone + sum(table[choice[i], choice[j]] for (i, j), table in self.pairs.items()))

    def bytes(self, choice: Assignment) -> float:
        """What a choice holds."""
        return float(sum(table[at] for table, at in zip(self.memory, choice, strict=True)))

    def weighed(self, price: float) -> Problem:
        """The problem in which every byte takes so many seconds."""
        unary = [seconds + price * held for seconds, held in zip(self.unary, self.memory, strict=True)]
        return Problem(unary, self.memory, self.pairs)

    def restricted(self, variable: int, allowed: NDArray[np.bool_]) -> Problem:
        """The problem in which some choices of a variable are not allowed."""
        unary = list(self.unary)
        unary[variable] = np.where(allowed, unary[variable], np.inf)
        return Problem(unary, self.memory, self.pairs)
