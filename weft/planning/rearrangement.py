"""Rearrangements: every element of a result is one element of a source, found by counting (slice, pad, roll, cat, …).

Each device receives exactly the elements of its target box that it does not hold, from whoever holds them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import final

from ..caches import cached
from ..frozen import Written
from ..sharding.geometry import Interval, interval
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .boxes.pieces import Coords, overlapping
from .step import Bytes
from .topology import Tier, axis_tier, current_topology

__all__ = [
    "CountedLater",
    "OpenRearrangement",
    "Part",
    "Rearrangement",
    "Run",
    "Side",
    "SlotCopy",
    "opened",
    "rearranged_bytes",
    "rearranged_cost",
]

Shape = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Run(Written):
    """Indices of one dim: number i of them is `source + i·source_step`, and lands on `target + i·target_step`.

    >>> Run(3, source=2)
    Run(count=3, source=2, target=0, source_step=1, target_step=1)
    """

    count: int
    source: int = 0
    target: int = 0
    source_step: int = 1
    target_step: int = 1


@final
@dataclass(frozen=True, slots=True)
class Part(Written):
    """A box of one source that lands on a box of the target, one run per dim."""

    source: int
    runs: tuple[Run, ...]

    @classmethod
    def along(cls, dim: int, run: Run, shape: Sequence[int], source: int = 0) -> Part:
        """A run of one dim, and all of the others, which have these sizes.

        >>> Part.along(1, Run(2, source=5), (3, 8)).runs[1].count
        2
        """
        return cls(source, tuple(run if d == dim else Run(size) for d, size in enumerate(shape)))


@final
@dataclass(frozen=True, slots=True)
class Side(Written):
    """A tensor that is read or made: its layout and shape, cut in multiples of a unit along each dim.

    Units say a tensor whose trailing dims were flattened into the dim before them: (4, 6) split by rows is (24,) cut in
    multiples of 6.
    """

    layout: Layout
    shape: Shape
    units: Shape

    @staticmethod
    def of(layout: Layout, shape: Sequence[int]) -> Side:
        """A tensor as it is."""
        return Side(layout, tuple(shape), (1,) * len(shape))

    def box(self, coords: Coords) -> tuple[Interval, ...]:
        """What is held at these mesh coordinates."""
        index_of, sizes = self.layout.mesh.index_of, self.layout.mesh.mesh_shape
        result = []
        for size, unit, axes in zip(self.shape, self.units, self.layout.splits, strict=True):
            at = [index_of[axis] for axis in axes]
            low, high = interval(size // unit, [(sizes[i], coords[i]) for i in at]) if axes else (0, size // unit)
            result.append((low * unit, high * unit))
        return tuple(result)

    def meeting(self, dim: int, start: int, stop: int) -> Iterator[tuple[Coords, Interval]]:
        """The pieces along a dim that meet an interval: their coordinates along the splitting axes, and themselves."""
        unit, axes = self.units[dim], self.layout.splits[dim]
        if not axes:
            yield (), (0, self.shape[dim])
            return
        counts = [self.layout.mesh.axis_size(axis) for axis in axes]
        for coords, _ in overlapping(self.shape[dim] // unit, counts, start // unit, -(-stop // unit)):
            low, high = interval(self.shape[dim] // unit, list(zip(counts, coords, strict=True)))
            yield coords, (low * unit, high * unit)


@final
@dataclass(frozen=True, slots=True)
class SlotCopy:
    """One copy: a part of what a slot holds of a source, to a part of what the receiver will hold."""

    source: int
    source_slot: Slot
    source_part: tuple[slice, ...]
    target_part: tuple[slice, ...]
    shape: Shape

    @property
    def elements(self) -> int:
        """How many elements are copied."""
        return math.prod(self.shape)


class OpenRearrangement(Written):
    """A rearrangement, but for the sizes of what is rearranged, which a compiler may leave open."""

    __slots__ = ()

    @abstractmethod
    def known(self, sizes: Shape) -> Rearrangement:
        """The rearrangement for some sizes: those of the sources, those of the result, and what else it counts by."""


@final
@dataclass(frozen=True, slots=True)
class Rearrangement(OpenRearrangement):
    """What a result is made of, all on one mesh; parts do not overlap.

    >>> from weft.sharding.mesh import make_mesh
    >>> rows = Layout(make_mesh({"x": 2}), (("x",),))
    >>> first_half = Rearrangement((Side.of(rows, (8,)),), Side.of(rows, (4,)), (Part(0, (Run(4),)),))
    >>> [(c.source_slot, c.source_part, c.target_part) for c in first_half.copies(1)]
    [(0, (slice(2, 4, 1),), (slice(0, 2, 1),))]
    """

    sources: tuple[Side, ...]
    target: Side
    parts: tuple[Part, ...]
    flips: tuple[int, ...] = ()
    """Dims along which the result runs backwards: each device reverses what it has put together."""

    def known(self, sizes: Shape) -> Rearrangement:  # noqa: ARG002 - as of others, which are for any
        """Itself, which is for one size."""
        return self

    def copies(self, slot: Slot) -> tuple[SlotCopy, ...]:
        """What a slot of the target puts together, and from whom."""
        return _copies(self, slot)


@final
@dataclass(frozen=True, slots=True)
class CountedLater(OpenRearrangement):
    """A rearrangement of some parts, of which not all numbers are known yet.

    >>> from weft.sharding.mesh import make_mesh
    >>> rows = Layout(make_mesh({"x": 2}), (("x",),))
    >>> tail = CountedLater((rows,), rows, (0,), (None, 1, 0, 1, 1))
    >>> tail.known((8, 7, 7)).parts
    (Part(source=0, runs=(Run(count=7, source=1, target=0, source_step=1, target_step=1),)),)
    """

    sources: tuple[Layout, ...]
    target: Layout
    origins: tuple[int, ...]
    """Of which source each part is."""
    numbers: tuple[int | None, ...]
    """Those of all runs, as they stand in a `Run`, one after another; None: given later."""
    flips: tuple[int, ...] = ()

    def known(self, sizes: Shape) -> Rearrangement:
        """The parts with all their numbers."""
        left = iter(sizes)
        sides = [Side.of(layout, tuple(islice(left, layout.rank))) for layout in (*self.sources, self.target)]
        numbers = [next(left) if number is None else number for number in self.numbers]
        runs = [Run(*five) for five in zip(*[iter(numbers)] * 5, strict=True)]
        rank = self.target.rank
        parts = [Part(source, tuple(runs[k * rank : (k + 1) * rank])) for k, source in enumerate(self.origins)]
        return Rearrangement(tuple(sides[:-1]), sides[-1], tuple(parts), self.flips)


def opened(plan: Rearrangement) -> tuple[OpenRearrangement, tuple[int, ...]]:
    """A plan as it can be written down, and the sizes and other numbers that it is for, where a compiler leaves any of these open."""
    numbers = [n for part in plan.parts for run in part.runs for n in _numbers(run)]
    sides = (*plan.sources, plan.target)
    sizes = [size for side in sides for size in side.shape]
    if all(type(n) is int for n in (*sizes, *numbers)):
        return plan, ()
    counted = CountedLater(
        tuple(side.layout for side in plan.sources),
        plan.target.layout,
        tuple(part.source for part in plan.parts),
        tuple(n if type(n) is int else None for n in numbers),
        plan.flips,
    )
    return counted, (*sizes, *(n for n in numbers if type(n) is not int))


def _numbers(run: Run) -> tuple[int, ...]:
    return run.count, run.source, run.target, run.source_step, run.target_step


@cached(16384)
def _copies(plan: Rearrangement, slot: Slot) -> tuple[SlotCopy, ...]:
    coords = plan.target.layout.mesh.coords(slot)
    where = list(plan.target.box(coords))
    for dim in plan.flips:
        where[dim] = plan.target.shape[dim] - where[dim][1], plan.target.shape[dim] - where[dim][0]
    return tuple(copy for part in plan.parts for copy in _of_part(plan, part, coords, where))


def _of_part(plan: Rearrangement, part: Part, coords: Coords, where: Sequence[Interval]) -> Iterator[SlotCopy]:
    side = plan.sources[part.source]
    mesh = side.layout.mesh
    per_dim = [list(_along(side, dim, run, where[dim])) for dim, run in enumerate(part.runs)]
    for pieces in product(*per_dim):
        at = list(coords)
        for axes, piece in zip(side.layout.splits, pieces, strict=True):
            for axis, coord in zip(axes, piece.coords, strict=True):
                at[mesh.index_of[axis]] = coord
        yield SlotCopy(
            part.source,
            mesh.slot(at),
            tuple(piece.source for piece in pieces),
            tuple(piece.target for piece in pieces),
            tuple(piece.count for piece in pieces),
        )


@dataclass(frozen=True, slots=True)
class _Along:
    """A stretch of a run that one piece of the source holds, in the coordinates of that piece and of the receiver."""

    coords: Coords
    source: slice
    target: slice
    count: int


def _along(side: Side, dim: int, run: Run, where: Interval) -> Iterator[_Along]:
    first, last = _within(run.target, run.target_step, run.count, where)
    if first >= last:
        return
    start, stop = run.source + first * run.source_step, run.source + (last - 1) * run.source_step + 1
    for coords, held in side.meeting(dim, start, stop):
        low, high = _within(run.source, run.source_step, run.count, held)
        low, high = max(low, first), min(high, last)
        if low < high:
            yield _Along(
                coords,
                _slice(run.source, run.source_step, low, high, held[0]),
                _slice(run.target, run.target_step, low, high, where[0]),
                high - low,
            )


def _within(start: int, step: int, count: int, bounds: Interval) -> Interval:
    """Which numbers of a run lie in an interval."""
    low, high = bounds
    return max(-(-(low - start) // step), 0), min(-(-(high - start) // step), count)


def _slice(start: int, step: int, low: int, high: int, base: int) -> slice:
    """The numbers low … high-1 of a run as a slice."""
    return slice(start + low * step - base, start + (high - 1) * step - base + 1, step)


@cached(4096)
def rearranged_bytes(plan: Rearrangement, itemsize: int) -> Bytes:
    """What devices receive from others; along axes that split nothing, all receive alike."""
    mesh = plan.target.layout.mesh
    sides = (*plan.sources, plan.target)
    split = [any(axis in side.layout.dim_of for side in sides) for axis in mesh.axis_names]
    ranges = [range(size) if cut else range(1) for size, cut in zip(mesh.mesh_shape, split, strict=True)]
    alike = math.prod(size for size, cut in zip(mesh.mesh_shape, split, strict=True) if not cut)
    received = []
    for coords in product(*ranges):
        slot = mesh.slot(coords)
        others = (copy.elements for copy in plan.copies(slot) if copy.source_slot != slot)
        received.append(sum(others) * itemsize)
    return Bytes(max(received), sum(received) * alike)


def rearranged_cost(plan: Rearrangement, itemsize: int) -> float:
    """The seconds that a rearrangement takes by the cost model: one exchange among the devices that it is split over."""
    received = rearranged_bytes(plan, itemsize).max
    if not received:
        return 0.0
    topology = current_topology()
    mesh = plan.target.layout.mesh
    axes = {axis for side in (*plan.sources, plan.target) for axis in side.layout.dim_of}
    tier = max((axis_tier(mesh, axis, topology) for axis in axes), default=Tier.DEVICE)
    return topology.time(tier, received)
