"""Windows: what each device reads of a split tensor when an op looks over the border of its part, as convolutions do.

Each device receives the elements of its window that it does not hold: a halo, from whoever holds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import final

from ...caches import cached
from ...sharding.geometry import Interval
from ...sharding.layout import Layout
from ..rearrangement import Part, Rearrangement, Run, Side
from .pieces import Coords, cuts

__all__ = ["Reach", "Windows", "windows_of"]

_NOTHING: Interval = (0, 0)


@final
@dataclass(frozen=True, slots=True)
class Reach:
    """Along one dim, which indices each result is made of: number `o` of the results reads `o·stride - padding + k·dilation`.

    >>> Reach(kernel=3, stride=2, padding=1).reads(4, 6)
    (7, 12)
    """

    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @property
    def extent(self) -> int:
        """How many indices lie between the first and the last that one result reads, both included."""
        return (self.kernel - 1) * self.dilation + 1

    def reads(self, start: int, stop: int) -> Interval:
        """The indices that some results read; those below 0 and past the end are padding."""
        if start >= stop:
            return _NOTHING
        return start * self.stride - self.padding, (stop - 1) * self.stride - self.padding + self.extent

    def reached(self, start: int, stop: int, results: int) -> Interval:
        """Among so many results, those that may read one of some indices.

        >>> Reach(kernel=3, stride=2, padding=1).reached(7, 12, results=100)
        (3, 7)
        """
        first = max(0, -(-(start + self.padding - self.extent + 1) // self.stride))
        last = min(results, (stop - 1 + self.padding) // self.stride + 1)
        return (first, last) if start < stop and first < last else _NOTHING


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """What devices in a layout read of a tensor: of some dims an interval each, of the others what the layout says.

    >>> from weft.sharding.mesh import make_mesh
    >>> rows = Layout(make_mesh({"x": 2}), (("x",),))
    >>> halo = Windows(Side.of(rows, (8,)), rows, (((-1, 5), (3, 9)),))
    >>> [(c.source_slot, c.source_part, c.target_part) for c in halo.plan.copies(0)]
    [(0, (slice(0, 4, 1),), (slice(1, 5, 1),)), (1, (slice(0, 1, 1),), (slice(5, 6, 1),))]
    """

    source: Side
    target: Layout
    reads: tuple[tuple[Interval, ...] | None, ...]
    """For each dim that is read in intervals, the interval of each part, in order."""

    @property
    def plan(self) -> Rearrangement:
        """The exchange: windows of one width side by side, each as far as there is something to read."""
        return _plan(self)

    @property
    def parts(self) -> int:
        """How many windows there are."""
        return math.prod(len(dim) for dim in self.reads if dim is not None)

    @property
    def is_covered(self) -> bool:
        """Whether every window is as wide as the widest, and nothing of it is padding."""
        return all(
            start >= 0 and stop <= size and stop - start == _width(dim)
            for dim, size in zip(self.reads, self.source.shape, strict=True)
            if dim is not None
            for start, stop in dim
        )

    def at(self, coords: Coords) -> tuple[Interval | None, ...]:
        """For each dim that is read in intervals, the one at these mesh coordinates."""
        index_of, sizes = self.target.mesh.index_of, self.target.mesh.mesh_shape
        found: list[Interval | None] = []
        for dim, axes in zip(self.reads, self.target.splits, strict=True):
            number = 0
            for axis in axes:
                number = number * sizes[index_of[axis]] + coords[index_of[axis]]
            found.append(None if dim is None else dim[number])
        return tuple(found)


def _width(dim: tuple[Interval, ...]) -> int:
    return max(stop - start for start, stop in dim)


@cached(1024, of_sizes=True)
def _plan(windows: Windows) -> Rearrangement:
    shape: list[int] = []
    runs: list[list[Run]] = []
    for dim, size in zip(windows.reads, windows.source.shape, strict=True):
        if dim is None:
            shape.append(size)
            runs.append([Run(size)])
            continue
        width = _width(dim)
        shape.append(width * len(dim))
        runs.append([])
        for number, (start, stop) in enumerate(dim):
            first, last = max(start, 0), min(stop, size)
            if first < last:
                runs[-1].append(Run(last - first, source=first, target=number * width + first - start))
    parts = tuple(Part(0, each) for each in product(*runs))
    return Rearrangement((windows.source,), Side.of(windows.target, shape), parts)


def windows_of(
    source: Side, target: Layout, reaches: dict[int, Reach], results: tuple[int, ...], *, back: bool = False
) -> Windows:
    """What devices read for their part of the results, along the dims of the reaches; all are laid out like `target`.

    `back`: the source is the results, and devices read those that their part of what was read went into.
    """
    mesh = target.mesh
    reads: list[tuple[Interval, ...] | None] = []
    for dim, (size, axes) in enumerate(zip(results, target.splits, strict=True)):
        reach = reaches.get(dim)
        if reach is None:
            reads.append(None)
            continue
        own = cuts(size, tuple(mesh.axis_size(axis) for axis in axes))
        if back:
            reads.append(tuple(reach.reached(start, stop, source.shape[dim]) for start, stop in own))
        else:
            reads.append(tuple(reach.reads(start, stop) for start, stop in own))
    return Windows(source, target, tuple(reads))
