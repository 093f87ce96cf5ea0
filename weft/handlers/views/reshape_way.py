"""`ReshapeWay`: how the elements of a split tensor get to where a reshape wants them.

A reshape cuts its dims into runs of dims with equal products, each reshaped by itself. Where a run is split by a dim that
is none of the result's, the result is split by the dim of the new run that moves least: (48@tp) to (3, 8@tp, 2). Seen flat,
either side holds stretches of the run's elements, and the stretches that both cut are exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from ...engine.strategy import BroughtTensor, Exchanged, Strategy, cheapest
from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...rules.ops.views import common_cuts, reshape_groups
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh

__all__ = ["ReshapeWay", "cut_alike", "find_way", "is_free_merge", "merged_from"]

Shape = tuple[int, ...]
Axes = tuple[str, ...]
_MOST_PARTS = 512


@dataclass(frozen=True, slots=True)
class ReshapeWay:
    """A movement of the input, if its layout is not `before`, then an exchange of stretches."""

    before: Layout
    after: Layout
    plan: Rearrangement


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
    crossings = []
    start = 0
    for first, second in reshape_groups(old, new):
        splits = layout.splits[start : start + len(first)]
        start += len(first)
        crossing = _crossing(layout.mesh, tuple(first), tuple(second), splits, itemsize)
        if crossing is None:
            return None
        crossings.append(crossing)
    before = Layout(layout.mesh, [axes for c in crossings for axes in c.before], layout.pending)
    after = Layout(layout.mesh, [axes for c in crossings for axes in c.after], layout.pending)
    plan = _plan(layout, crossings)
    if plan is None:
        return None
    exchange = BroughtTensor(layout, before, old, itemsize), Exchanged(plan, itemsize)
    ways: list[Strategy[ReshapeWay | None]] = [
        Strategy(f"exchange stretches, {after}", ReshapeWay(before, after, plan), () if is_merge else exchange),
        Strategy(f"bring it to {need}", None, (BroughtTensor(layout, need, old, itemsize),)),
    ]
    return cheapest(ways)


def _plan(layout: Layout, crossings: Sequence[_Crossing]) -> Rearrangement | None:
    if math.prod(len(c.parts) for c in crossings) > _MOST_PARTS:
        return None
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
    whole = math.prod(first)
    if not axes:
        flat = (_SideDim(whole),)
        return _Crossing(splits, ((),) * len(second), flat, flat, ((Run(whole),),))
    if first == second:
        dims = tuple(_SideDim(size, names) for size, names in zip(first, splits, strict=True))
        return _Crossing(splits, splits, dims, dims, (tuple(map(Run, first)),))
    if whole == 1:
        return None
    split = [d for d, names in enumerate(splits) if names]
    # Several split dims, and dims without extent, first become one: the first that has any.
    at = split[0] if len(split) == 1 and first[split[0]] > 1 else next(d for d, n in enumerate(first) if n > 1)
    count = mesh.group_size(axes)
    # Of equal ways an even one is taken.
    ways = []
    for dim in sorted((d for d, size in enumerate(second) if size >= count), key=lambda d: second[d] % count > 0):
        way = _between(first, at, second, dim, axes)
        plan = _plan(Layout(mesh, ()), [way])
        if plan is not None:
            ways.append(Strategy(f"split dim {dim} of {second}", way, (Exchanged(plan, itemsize),)))
    return cheapest(ways) if ways else None


def _between(first: Shape, at: int, second: Shape, to: int, axes: Axes) -> _Crossing:
    """From a run split along dim `at` to one split along dim `to`, each seen as what stands before that dim, and the rest."""
    sources, targets = _seen(first, at, axes), _seen(second, to, axes)
    marks = sorted({*range(0, math.prod(first) + 1, sources[1].size), *range(0, math.prod(first) + 1, targets[1].size)})
    parts = []
    for start, stop in pairwise(marks):
        (row, column), (new_row, new_column) = divmod(start, sources[1].size), divmod(start, targets[1].size)
        parts.append((Run(1, source=row, target=new_row), Run(stop - start, source=column, target=new_column)))
    before = tuple(axes if d == at else () for d in range(len(first)))
    after = tuple(axes if d == to else () for d in range(len(second)))
    return _Crossing(before, after, sources, targets, tuple(parts))


def _seen(run: Shape, dim: int, axes: Axes) -> tuple[_SideDim, _SideDim]:
    unit = math.prod(run[dim + 1 :])
    return _SideDim(math.prod(run[:dim])), _SideDim(run[dim] * unit, axes, unit)
