"""How much each device holds, shares or lacks, counted by classes of equal devices.

A measure of a device is a product of one length per tensor dim, and the length of a dim
depends on few mesh axes. So a table per dim is enough; only dims that share axes are
looked at together, and what does not vary is never enumerated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import final

from ...caches import cached
from ...sharding.geometry import Box, Interval, box_at, volume
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from .pieces import cuts, meetings

__all__ = [
    "HeldOverlap",
    "Lengths",
    "Measure",
    "Volume",
    "axis_sizes",
    "census",
    "common_volume",
    "everywhere",
    "split_sizes",
    "spread_index",
]

Shape = tuple[int, ...]
Lengths = tuple[tuple[str, ...], Sequence[int]]
"""The mesh axes that a dim's length depends on, and the lengths in row-major order of their coordinates."""

Classes = Mapping[tuple[int, ...], int]
"""Values of several measures, and how many devices have exactly these."""


class Measure(ABC):
    """A number of elements per device that is a product of one length per tensor dim."""

    __slots__ = ()

    @abstractmethod
    def lengths(self, dim: int, size: int) -> Lengths:
        """The lengths of one dim, by the coordinates that they depend on."""

    @abstractmethod
    def at(self, shape: Shape, coords: Sequence[int]) -> int:
        """The number of elements at some coordinates."""


@final
@dataclass(frozen=True, slots=True)
class Volume(Measure):
    """What a device holds."""

    layout: Layout

    def lengths(self, dim: int, size: int) -> Lengths:
        axes = self.layout.splits[dim]
        counts = split_sizes(self.layout, dim)
        if size % math.prod(counts) == 0:
            return (), (size // math.prod(counts),)
        return axes, [stop - start for start, stop in cuts(size, counts)]

    def at(self, shape: Shape, coords: Sequence[int]) -> int:
        return volume(box_at(self.layout, shape, coords))


@final
@dataclass(frozen=True, slots=True)
class HeldOverlap(Measure):
    """What a device holds in both of two layouts on one mesh."""

    first: Layout
    second: Layout

    def lengths(self, dim: int, size: int) -> Lengths:
        mine, other = self.first.splits[dim], self.second.splits[dim]
        if mine == other[: len(mine)]:
            return Volume(self.second).lengths(dim, size)
        if other == mine[: len(other)]:
            return Volume(self.first).lengths(dim, size)
        sizes = axis_sizes(self.first.mesh)
        both = tuple(axis for axis in mine if axis in other)
        only = tuple(axis for axis in other if axis not in mine)
        ours, theirs = {axis: sizes[axis] for axis in mine}, {axis: sizes[axis] for axis in other}
        inner, width = spread_index(theirs, only), math.prod(sizes[axis] for axis in only)
        here, there = spread_index(ours, both), spread_index(theirs, both)
        table = [0] * (len(here) * width)
        for i, j, (start, stop) in meetings(size, tuple(ours.values()), tuple(theirs.values())):
            if here[i] == there[j]:
                table[i * width + inner[j]] = stop - start
        return mine + only, table

    def at(self, shape: Shape, coords: Sequence[int]) -> int:
        return common_volume(box_at(self.first, shape, coords), box_at(self.second, shape, coords))


def census(mesh: DeviceMesh, shape: Shape, measures: Sequence[Measure]) -> Classes:
    """The values of the measures on all slots of a mesh, with how often each combination occurs.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 2, "tp": 2})
    >>> dict(census(mesh, (5,), [Volume(Layout(mesh, (("dp",),)))]))
    {(3,): 2, (2,): 2}
    """
    constant, tables = _tables(shape, measures)
    sizes = axis_sizes(mesh)
    classes: Counter[tuple[int, ...]] = Counter({tuple(constant): 1})
    used: set[str] = set()
    for group in _connected(tables):
        axes = tuple(dict.fromkeys(axis for _, names, _ in group for axis in names))
        used.update(axes)
        part = _enumerate({axis: sizes[axis] for axis in axes}, group, len(measures))
        joined: Counter[tuple[int, ...]] = Counter()
        for (left, n), (right, m) in product(classes.items(), part.items()):
            joined[tuple(x * y for x, y in zip(left, right, strict=True))] += n * m
        classes = joined
    others = math.prod(n for axis, n in sizes.items() if axis not in used)
    return {values: count * others for values, count in classes.items()}


def everywhere(mesh: DeviceMesh, shape: Shape, measure: Measure) -> list[int]:
    """The values of a measure on all slots of a mesh, in order.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 2, "tp": 2})
    >>> everywhere(mesh, (5,), Volume(Layout(mesh, (("tp",),))))
    [3, 2, 3, 2]
    """
    values = [1] * mesh.num_devices
    sizes = axis_sizes(mesh)
    for dim, size in enumerate(shape):
        axes, lengths = measure.lengths(dim, size)
        values = [value * lengths[i] for value, i in zip(values, spread_index(sizes, axes), strict=True)]
    return values


_Table = tuple[int, tuple[str, ...], Sequence[int]]


def _tables(shape: Shape, measures: Sequence[Measure]) -> tuple[list[int], list[_Table]]:
    """What is the same on all devices, and a table (measure, axes, lengths) for what is not."""
    constant = [1] * len(measures)
    tables: list[_Table] = []
    for index, measure in enumerate(measures):
        for dim, size in enumerate(shape):
            axes, lengths = measure.lengths(dim, size)
            first = lengths[0]
            if not axes or lengths.count(first) == len(lengths):
                constant[index] *= first
            else:
                tables.append((index, axes, lengths))
    return constant, tables


def _connected(tables: Sequence[_Table]) -> list[list[_Table]]:
    groups: list[tuple[set[str], list[_Table]]] = []
    for table in tables:
        axes, members = set(table[1]), [table]
        apart = []
        for other_axes, others in groups:
            if axes & other_axes:
                axes |= other_axes
                members = others + members
            else:
                apart.append((other_axes, others))
        groups = [*apart, (axes, members)]
    return [members for _, members in groups]


def _enumerate(sizes: Mapping[str, int], group: Sequence[_Table], count: int) -> Counter[tuple[int, ...]]:
    everywhere = [1] * math.prod(sizes.values())
    values = [everywhere] * count
    for index, axes, lengths in group:
        column = list(lengths) if tuple(sizes) == axes else [lengths[i] for i in spread_index(sizes, axes)]
        held = values[index]
        values[index] = column if held is everywhere else [x * y for x, y in zip(held, column, strict=True)]
    return Counter(zip(*values, strict=True))


def spread_index(sizes: Mapping[str, int], axes: Sequence[str]) -> list[int]:
    """For all coordinates along `sizes` in row-major order, the row-major index along some of the axes.

    >>> spread_index({"a": 2, "b": 3}, ("b", "a"))
    [0, 2, 4, 1, 3, 5]
    """
    if tuple(sizes) == tuple(axes):
        return list(range(math.prod(sizes.values())))
    strides: dict[str, int] = {}
    stride = 1
    for axis in reversed(axes):
        strides[axis] = stride
        stride *= sizes[axis]
    result = [0]
    for axis, size in sizes.items():
        step = strides.get(axis, 0)
        if step:
            steps = range(0, step * size, step)
            result = [start + more for start in result for more in steps]
        else:
            result = [start for start in result for _ in range(size)]
    return result


@cached(1024)
def axis_sizes(mesh: DeviceMesh) -> Mapping[str, int]:
    """Axis sizes by name, in mesh order."""
    return MappingProxyType(mesh.shape)


def split_sizes(layout: Layout, dim: int) -> tuple[int, ...]:
    """The sizes of the axes that split a dim, major first."""
    sizes = axis_sizes(layout.mesh)
    return tuple(sizes[axis] for axis in layout.splits[dim])


def _common(first: Interval, second: Interval) -> int:
    return max(0, min(first[1], second[1]) - max(first[0], second[0]))


def common_volume(first: Box, second: Box) -> int:
    """How many elements two boxes share.

    >>> common_volume(((0, 3),), ((2, 5),))
    1
    """
    return math.prod(_common(a, b) for a, b in zip(first, second, strict=True))
