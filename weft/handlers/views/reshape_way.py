"""`ReshapeWay`: how the elements of a split tensor get to where a reshape wants them.

A reshape cuts its dims into runs of dims with equal products, each reshaped by itself. Where a run is split by a dim that
is none of the result's, the result is split by the dim of the new run that moves least: (48@tp) to (3, 8@tp, 2). Seen flat,
either side holds stretches of the run's elements, and the stretches that both cut are exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import final

from ...caches import cached
from ...engine.strategy import BroughtTensor, Exchanged, Strategy, cheapest
from ...planning.rearrangement import OpenRearrangement, Part, Rearrangement, Run, Side
from ...rules.ops.views import common_cuts, reshape_groups
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh

__all__ = ["ReshapeWay", "cut_alike", "find_way", "is_free_merge", "merged_from"]

Shape = tuple[int, ...]
Axes = tuple[str, ...]
Splits = tuple[Axes, ...]
_MOST_PARTS = 512


@final
@dataclass(frozen=True, slots=True)
class ReshapeWay(OpenRearrangement):
    """A movement of the input, if its layout is not `before`, then an exchange of stretches."""

    before: Layout
    after: Layout
    runs: tuple[tuple[int, int], ...]
    """How many dims each run has, before and after."""

    def known(self, sizes: Shape) -> Rearrangement:
        """The exchange between two shapes."""
        return _known(self, tuple(sizes))

    def is_short(self, old: Shape, new: Shape) -> bool:
        """Whether few enough stretches are exchanged, for all sizes of which this is true: what it asks is a condition of a program."""
        most = 1
        for first, second, before, after in _in_runs(self, old, new):
            if any(before) and not (before == after and first == second):
                most *= math.prod(first[: _split_dim(before)]) + math.prod(second[: _split_dim(after)]) - 1
        return most <= _MOST_PARTS


@dataclass(frozen=True, slots=True)
class _SideDim:
    """One dim of a side of the exchange: its size, the axes that split it, in multiples of what."""

    size: int
    axes: Axes = ()
    unit: int = 1


@dataclass(frozen=True, slots=True)
class _Crossing:
    """One run of dims on its way: its splits before and after, and the exchange between them."""

    before: tuple[Axes, ...]
    after: tuple[Axes, ...]
    sources: tuple[_SideDim, ...]
    targets: tuple[_SideDim, ...]
    parts: tuple[tuple[Run, ...], ...]


def merged_from(old: Shape, new: Shape) -> tuple[int, ...] | None:
    """From how many dims larger than 1 each new one is merged, or None where a reshape does more than merge dims.

    >>> merged_from((4, 6, 1, 5), (24, 1, 5)), merged_from((4, 6), (3, 8))
    ((2, 0, 1), None)
    """
    if 0 in old:
        return None
    groups = reshape_groups([size for size in old if size > 1], [size for size in new if size > 1])
    if any(len(second) > 1 for _, second in groups):
        return None
    merged = iter(groups)
    return tuple(len(next(merged)[0]) if size > 1 else 0 for size in new)


def cut_alike(old: Shape, new: Shape) -> list[list[int]] | None:
    """For each new dim, the sizes larger than 1 that it is merged from, when old dims are cut as far as that takes.

    None where cuts do not nest, or nothing is merged.

    >>> (
    ...     cut_alike((8, 4, 16), (8, 16, 4)),
    ...     cut_alike((6, 4), (24, 1)),
    ...     cut_alike((4, 6), (3, 8)),
    ...     cut_alike((6,), (2, 3)),
    ... )
    ([[8], [4, 4], [4]], [[6, 4], []], None, None)
    """
    if 0 in old:
        return None
    parts: list[list[int]] = []
    for first, second in reshape_groups([n for n in old if n > 1], [n for n in new if n > 1]):
        cuts = common_cuts(first, second)
        if cuts is None:
            return None
        left = iter(cuts)
        for size in second:
            part: list[int] = []
            while math.prod(part) < size:
                part.append(next(left))
            parts.append(part)
    if all(len(part) == 1 for part in parts):
        return None
    larger = iter(parts)
    return [next(larger) if size > 1 else [] for size in new]


def is_free_merge(mesh: DeviceMesh, part: Sequence[int], splits: Sequence[Axes]) -> bool:
    """Whether dims can be merged where they lie: only the first is split, into equal parts."""
    count = mesh.group_size(splits[0])
    return not any(splits[1:]) and part[0] % count == 0


def find_way(
    layout: Layout, old: Shape, new: Shape, itemsize: int, need: Layout, *, is_merge: bool
) -> ReshapeWay | None:
    """The way of a reshape, or None where bringing the tensor to the layout `need` is cheaper.

    `is_merge`: dims are only merged, so that elements stay where they are until something needs them exchanged.
    """
    crossings, runs = [], []
    start = 0
    for first, second in reshape_groups(old, new):
        splits = layout.splits[start : start + len(first)]
        start += len(first)
        crossing = _crossing(layout.mesh, tuple(first), tuple(second), splits, itemsize)
        if crossing is None:
            return None
        crossings.append(crossing)
        runs.append((len(first), len(second)))
    before = Layout(layout.mesh, [axes for c in crossings for axes in c.before], layout.pending)
    after = Layout(layout.mesh, [axes for c in crossings for axes in c.after], layout.pending)
    if not _are_few(crossings):
        return None
    way = ReshapeWay(before, after, tuple(runs))
    exchange = BroughtTensor(layout, before, old, itemsize), Exchanged(way.known((*old, *new)), itemsize)
    ways: list[Strategy[ReshapeWay | None]] = [
        Strategy(f"exchange stretches, {after}", way, () if is_merge else exchange),
        Strategy(f"bring it to {need}", None, (BroughtTensor(layout, need, old, itemsize),)),
    ]
    return cheapest(ways)


@cached(4096)
def _known(way: ReshapeWay, sizes: Shape) -> Rearrangement:
    rank = way.before.rank
    runs = _in_runs(way, sizes[:rank], sizes[rank:])
    return _plan(way.before, [_crossed(*run) for run in runs])


def _in_runs(way: ReshapeWay, old: Shape, new: Shape) -> Iterator[tuple[Shape, Shape, Splits, Splits]]:
    """The sizes of each run of dims and the axes that split them, before and after."""
    at = to = 0
    for count, becoming in way.runs:
        here, there = slice(at, at + count), slice(to, to + becoming)
        yield old[here], new[there], way.before.splits[here], way.after.splits[there]
        at, to = at + count, to + becoming


def _split_dim(splits: Splits) -> int:
    """The one dim of a run that is split."""
    return next(dim for dim, axes in enumerate(splits) if axes)


def _are_few(crossings: Sequence[_Crossing]) -> bool:
    return math.prod(len(c.parts) for c in crossings) <= _MOST_PARTS


def _plan(layout: Layout, crossings: Sequence[_Crossing]) -> Rearrangement:
    sides = [
        Side(
            Layout(layout.mesh, [dim.axes for dim in dims], layout.pending),
            tuple(dim.size for dim in dims),
            tuple(dim.unit for dim in dims),
        )
        for dims in ([d for c in crossings for d in c.sources], [d for c in crossings for d in c.targets])
    ]
    parts = [Part(0, sum(runs, ())) for runs in product(*(c.parts for c in crossings))]
    return Rearrangement((sides[0],), sides[1], tuple(parts))


def _crossing(
    mesh: DeviceMesh, first: Shape, second: Shape, splits: tuple[Axes, ...], itemsize: int
) -> _Crossing | None:
    """How one run of dims crosses; None where no dim of the new run can be split so often."""
    axes = sum(splits, ())
    if not axes or first == second:
        return _crossed(first, second, splits, splits if axes else ((),) * len(second))
    if math.prod(first) == 1:
        return None
    split = [d for d, names in enumerate(splits) if names]
    # Several split dims, and dims without extent, first become one: the first that has any.
    at = split[0] if len(split) == 1 and first[split[0]] > 1 else next(d for d, n in enumerate(first) if n > 1)
    count = mesh.group_size(axes)
    # Of equal ways an even one is taken.
    ways = []
    for dim in sorted((d for d, size in enumerate(second) if size >= count), key=lambda d: second[d] % count > 0):
        way = _crossed(first, second, _only(at, axes, first), _only(dim, axes, second))
        if _are_few([way]):
            plan = _plan(Layout(mesh, ()), [way])
            ways.append(Strategy(f"split dim {dim} of {second}", way, (Exchanged(plan, itemsize),)))
    return cheapest(ways) if ways else None


def _only(split: int, axes: Axes, run: Shape) -> Splits:
    """A run that is split along one dim."""
    return tuple(axes if dim == split else () for dim in range(len(run)))


def _crossed(first: Shape, second: Shape, before: Splits, after: Splits) -> _Crossing:
    """One run of dims on its way from splits to others, each seen as what stands before the dim that is split, and the rest."""
    axes = sum(before, ())
    if not axes:
        flat = (_SideDim(math.prod(first)),)
        return _Crossing(before, after, flat, flat, ((Run(math.prod(first)),),))
    if before == after and first == second:
        dims = tuple(_SideDim(size, names) for size, names in zip(first, before, strict=True))
        return _Crossing(before, after, dims, dims, (tuple(map(Run, first)),))
    at, to = _split_dim(before), _split_dim(after)
    sources, targets = _seen(first, at, axes), _seen(second, to, axes)
    marks = sorted({*range(0, math.prod(first) + 1, sources[1].size), *range(0, math.prod(first) + 1, targets[1].size)})
    parts = []
    for start, stop in pairwise(marks):
        (row, column), (new_row, new_column) = divmod(start, sources[1].size), divmod(start, targets[1].size)
        parts.append((Run(1, source=row, target=new_row), Run(stop - start, source=column, target=new_column)))
    return _Crossing(before, after, sources, targets, tuple(parts))


def _seen(run: Shape, dim: int, axes: Axes) -> tuple[_SideDim, _SideDim]:
    unit = math.prod(run[dim + 1 :])
    return _SideDim(math.prod(run[:dim])), _SideDim(run[dim] * unit, axes, unit)
