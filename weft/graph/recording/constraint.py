"""`Constraint`: what must hold between sizes for a graph to be right, where that shows only when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from ...sharding.dims import Dim
from .sizes import value_of

__all__ = ["Constraint"]


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """Two sizes that must be equal, or one at most the other, and why.

    >>> rule = Constraint(Dim("batch") % 4, "==", Dim(0), "shard_and_stack cuts dim 0 into 4 equal parts")
    >>> rule.is_decided(), rule.holds({"batch": 8}), rule.holds({"batch": 6})
    (None, True, False)
    """

    left: Dim
    relation: Literal["==", "<="]
    right: Dim
    why: str

    @property
    def symbols(self) -> frozenset[str]:
        """The names it depends on."""
        return self.left.symbols | self.right.symbols

    def is_decided(self) -> bool | None:
        """Whether it holds, or fails, whatever the names stand for; `None` where that depends on them."""
        if self.left == self.right:
            return True
        try:
            if self.relation == "<=":
                return self.left <= self.right
            # Sizes that are always apart are never equal.
            return False if self.left < self.right or self.left > self.right else None
        except ValueError:
            return None

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it holds for these sizes."""
        left, right = value_of(self.left, sizes), value_of(self.right, sizes)
        return left == right if self.relation == "==" else left <= right

    def explained(self, sizes: Mapping[str, int]) -> str:
        """What was broken, with the sizes that broke it."""
        given = ", ".join(f"{name} = {sizes[name]}" for name in sorted(self.symbols))
        return f"{self.why}: that needs {self} ({given})"

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"
