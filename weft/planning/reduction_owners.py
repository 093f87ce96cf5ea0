"""Who reduces which box when contributions are brought together and spread again, with the fewest bytes.

Every element has one owner that gathers its contributions. It stands where the target
wants the element (axes that split the target), else where the source holds it (axes that
split only the source), so that an owner is a target and a holder wherever that is possible;
axes that split neither share the element's box among them. Every other target then
receives the element once. That is (contributions − 1) + targets − [a target holds one].
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import final

from ..caches import cached
from ..sharding.geometry import Box, Interval, box_at, has_elements, piece
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .boxes.census import Lengths, Measure, axis_sizes, split_sizes, spread_index
from .boxes.pieces import flat_index, meetings, overlapping
from .boxes.transfers import Transfer

__all__ = ["HeldRegion", "Reduction", "reduction"]

At = Mapping[str, int]
"""Coordinates by mesh axis."""


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where a piece of the source's dim meets a piece of the target's: their coordinates and the common interval."""

    source: At
    target: At
    interval: Interval


@cached(256)
def reduction(source: Layout, target: Layout, shape: tuple[int, ...]) -> Reduction:
    """The owners of a movement that resolves pending reductions."""
    return Reduction(source, target, shape)


@final
class Reduction:
    """The owners of a movement, and each slot's transfers to and from them.

    >>> from weft.sharding.mesh import make_mesh
    >>> from weft.sharding.placements import ReduceOp
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> summed = Layout(mesh, ((),), {"a": ReduceOp.SUM})
    >>> reduction(summed, Layout(mesh, ((),)), (8,)).owned(3)
    (((6, 8),),)
    """

    def __init__(self, source: Layout, target: Layout, shape: tuple[int, ...]) -> None:
        self.source, self.target, self.shape = source, target, shape
        self.mesh = source.mesh
        self.sizes = axis_sizes(self.mesh)
        kept = set(source.pending_axes) & set(target.pending_axes)
        self.resolved = tuple(axis for axis in source.pending_axes if axis not in kept)
        self.created = tuple(axis for axis in target.pending_axes if axis not in kept)
        used = {*source.dim_of, *target.dim_of, *kept}
        self.shared = tuple(axis for axis in self.mesh.axis_names if axis not in used)
        self.contributions = math.prod(self.sizes[axis] for axis in self.resolved)

    @cached_property
    def shared_dim(self) -> int:
        """The dim along which the axes that split neither layout share a box."""
        count = self.share_count

        def evenness(dim: int) -> tuple[bool, int]:
            local = self.shape[dim] // max(self.source.split_count(dim), self.target.split_count(dim))
            return local > 0 and local % count == 0, local

        return max(range(len(self.shape)), key=evenness)

    @property
    def spreads(self) -> bool:
        """Whether a result has more than one target, so that owners pass it on."""
        return any(self.sizes[axis] > 1 for axis in self.target.replicated_axes)

    @property
    def share_count(self) -> int:
        """Among how many owners a box is shared."""
        return math.prod(self.sizes[axis] for axis in self.shared)

    def _meetings(self, dim: int, start: int, stop: int) -> Iterator[_Meeting]:
        size = self.shape[dim]
        for wanted, (low, high) in overlapping(size, split_sizes(self.target, dim), start, stop):
            at = dict(zip(self.target.splits[dim], wanted, strict=True))
            for held, interval in overlapping(size, split_sizes(self.source, dim), low, high):
                yield _Meeting(dict(zip(self.source.splits[dim], held, strict=True)), at, interval)

    def share(self, interval: Interval, at: At) -> Interval:
        """The part of an interval along the shared dim that belongs to the owner at these coordinates."""
        index = flat_index([self.sizes[axis] for axis in self.shared], [at[axis] for axis in self.shared])
        low, high = piece(interval[1] - interval[0], self.share_count, index)
        return interval[0] + low, interval[0] + high

    def owned(self, slot: Slot) -> tuple[Box, ...]:
        """The boxes that a slot reduces."""
        return tuple(where for where, _ in self._owned(self._at(slot)))

    def collects(self, slot: Slot) -> tuple[Transfer, ...]:
        """The contributions to what a slot owns, its own included, box by box and in the order of contributions."""
        at = self._at(slot)
        return tuple(
            Transfer(self._slot({**at, **held, **contribution}), slot, where)
            for where, held in self._owned(at)
            for contribution in self._coords(self.resolved)
        )

    def contributes(self, slot: Slot) -> tuple[Transfer, ...]:
        """What a slot gives to owners, itself included."""
        at = self._at(slot)
        where = box_at(self.source, self.shape, self.mesh.coords(slot))
        per_dim = [list(self._wanted(dim, *interval)) for dim, interval in enumerate(where)]
        others = [axis for axis in self.shared if axis in self.resolved]
        found = []
        for combination in product(*per_dim):
            wanted = {axis: c for coords, _ in combination for axis, c in coords.items()}
            if any(at[axis] != c for axis, c in wanted.items() if axis in self._replicated):
                continue
            for more in self._coords(others):
                owner = {**at, **wanted, **more}
                part = self._shared_box([interval for _, interval in combination], owner)
                if has_elements(part):
                    found.append(Transfer(slot, self._slot(owner), part))
        return tuple(found)

    def takes(self, slot: Slot) -> tuple[Transfer, ...]:
        """What a slot receives from owners, itself included, to have what the target wants there."""
        at = self._at(slot)
        return tuple(Transfer(self._slot(owner), slot, where) for where, owner in self._needed(at))

    def gives(self, slot: Slot) -> tuple[Transfer, ...]:
        """What an owner gives to the targets, itself included."""
        at = self._at(slot)
        spread = self.target.replicated_axes
        return tuple(
            Transfer(slot, self._slot({**at, **more}), where)
            for where, _ in self._owned(at)
            for more in self._coords(spread)
        )

    @cached_property
    def _replicated(self) -> frozenset[str]:
        return frozenset(self.source.replicated_axes)

    def _wanted(self, dim: int, start: int, stop: int) -> Iterator[tuple[At, Interval]]:
        for coords, interval in overlapping(self.shape[dim], split_sizes(self.target, dim), start, stop):
            yield dict(zip(self.target.splits[dim], coords, strict=True)), interval

    def _owned(self, at: At) -> Iterator[tuple[Box, At]]:
        """The boxes owned at some coordinates, each with the coordinates that hold it in the source."""
        only_source = {axis for axis in self.source.dim_of if axis not in self.target.dim_of}
        for intervals, held in self._parts(at, only_source):
            part = self._shared_box(intervals, at)
            if has_elements(part):
                yield part, held

    def _needed(self, at: At) -> Iterator[tuple[Box, At]]:
        """The boxes that the target wants at some coordinates, each with the coordinates of its owner."""
        created = set(self.created)
        split_created = {axis for axis in self.source.dim_of if axis in created}
        open_axes = [axis for axis in self.shared if axis not in created]
        for intervals, held in self._parts(at, split_created):
            only_source = {axis: c for axis, c in held.items() if axis not in self.target.dim_of}
            for more in self._coords(open_axes):
                owner = {**at, **only_source, **more}
                part = self._shared_box(intervals, owner)
                if has_elements(part):
                    yield part, owner

    def _parts(self, at: At, matched: Collection[str]) -> Iterator[tuple[list[Interval], At]]:
        """What the target wants at some coordinates, cut by the source's pieces that agree along some axes."""
        where = box_at(self.target, self.shape, tuple(at.values()))
        per_dim = [
            [m for m in self._meetings(dim, *interval) if all(at[a] == c for a, c in m.source.items() if a in matched)]
            for dim, interval in enumerate(where)
        ]
        for combination in product(*per_dim):
            yield [m.interval for m in combination], {axis: c for m in combination for axis, c in m.source.items()}

    def _shared_box(self, intervals: Sequence[Interval], at: At) -> Box:
        if not self.shared:
            return tuple(intervals)
        parts = list(intervals)
        parts[self.shared_dim] = self.share(parts[self.shared_dim], at)
        return tuple(parts)

    def _coords(self, axes: Sequence[str]) -> Iterator[At]:
        for coords in product(*(range(self.sizes[axis]) for axis in axes)):
            yield dict(zip(axes, coords, strict=True))

    def _at(self, slot: Slot) -> dict[str, int]:
        return dict(zip(self.mesh.axis_names, self.mesh.coords(slot), strict=True))

    def _slot(self, at: At) -> Slot:
        return self.mesh.slot([at[axis] for axis in self.mesh.axis_names])


@final
@dataclass(frozen=True, slots=True)
class HeldRegion(Measure):
    """What a device has of the source's pieces that agree with it along some axes, and of the shared parts likewise."""

    reduction: Reduction
    matched: frozenset[str]

    @classmethod
    def owned(cls, of: Reduction) -> HeldRegion:
        """What a device reduces."""
        return cls(of, frozenset(of.source.dim_of) - frozenset(of.target.dim_of) | frozenset(of.shared))

    @classmethod
    def own_contribution(cls, of: Reduction) -> HeldRegion:
        """What a device reduces and holds a contribution to."""
        return cls(of, frozenset(of.source.dim_of) | frozenset(of.shared))

    @classmethod
    def needed(cls, of: Reduction) -> HeldRegion:
        """What the target wants on a device; where it begins a pending reduction, only this device's contribution."""
        return cls(of, frozenset(of.created))

    def lengths(self, dim: int, size: int) -> Lengths:
        of, matched = self.reduction, self.matched
        source = {axis: of.sizes[axis] for axis in of.source.splits[dim]}
        target = {axis: of.sizes[axis] for axis in of.target.splits[dim]}
        held = tuple(axis for axis in source if axis in matched and axis not in target)
        both = tuple(axis for axis in source if axis in matched and axis in target)
        here, there, inner = spread_index(source, both), spread_index(target, both), spread_index(source, held)
        width = math.prod(of.sizes[axis] for axis in held)
        sharing = {axis: of.sizes[axis] for axis in of.shared} if dim == of.shared_dim else {}
        shown = tuple(axis for axis in sharing if axis in matched)
        place, count = spread_index(sharing, shown), math.prod(sharing[axis] for axis in shown)
        table = [0] * (len(there) * width * count)
        for i, j, (start, stop) in meetings(size, tuple(source.values()), tuple(target.values())):
            if here[i] != there[j]:
                continue
            base = (j * width + inner[i]) * count
            each, more = divmod(stop - start, len(place))
            for index, position in enumerate(place):
                table[base + position] += each + (index < more)
        return (*target, *held, *shown), table

    def at(self, shape: tuple[int, ...], coords: Sequence[int]) -> int:
        mesh = self.reduction.mesh
        number = 1
        for dim, size in enumerate(shape):
            axes, lengths = self.lengths(dim, size)
            indices = [mesh.index_of[axis] for axis in axes]
            number *= lengths[flat_index([mesh.mesh_shape[i] for i in indices], [coords[i] for i in indices])]
        return number
