"""`Parts`: a tensor that is moved one part after another, where all of it at once would not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ..sharding.geometry import Interval, piece
from ..sharding.layout import Layout
from .step import Step, live

__all__ = ["Parts", "whole_dims"]

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Parts:
    """Nearly equal parts of a tensor along a dim that no layout on the way splits.

    >>> parts = Parts(1, 2)
    >>> list(parts.intervals((4, 5))), parts.shape((4, 5), (0, 3))
    ([(0, 3), (3, 5)], (4, 3))
    """

    dim: int
    count: int

    def intervals(self, shape: Shape) -> Iterator[Interval]:
        """Where the parts lie along the dim."""
        return (piece(shape[self.dim], self.count, number) for number in range(self.count))

    def shape(self, shape: Shape, interval: Interval) -> Shape:
        """The shape of one part."""
        return (*shape[: self.dim], interval[1] - interval[0], *shape[self.dim + 1 :])


def whole_dims(source: Layout, steps: Sequence[Step]) -> list[int]:
    """The dims that no layout on the way splits."""
    layouts = [source, *(step.target for step in steps), *(step.source for step in steps)]
    return [dim for dim in range(source.rank) if not any(live(layout)[dim] for layout in layouts)]
