"""Small movements between devices that are one in truth: each piece is cut by one call, and each result is put together by one.

Box by box, 8 devices that gather take 64 copies, each of which names two parts of tensors first: for small tensors that is all
there is to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import final

import torch

from ..caches import cached
from ..sharding.geometry import Interval, box_shape
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from .copies import Copy, Slices, Writing, contributions, writings
from .holding import Pieces, holding
from .machine import forget_with_residences
from .memory.host_pool import pooled_empty
from .reduction import reduce_into
from .traced import is_traced

__all__ = ["joined", "reduced_and_cut"]

_SMALL = 1 << 16
"""Bytes of a piece up to which the calls for a movement take longer than its bytes."""
_JOINED = frozenset(
    {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)
"""Dtypes whose tensors torch puts together on all devices."""
_Key = tuple[int, tuple[Interval, ...]]
_Cut = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def joined(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...]) -> Pieces | None:
    """The pieces after a movement that reduces nothing; None where it is not of this kind."""
    work = _joined_parts(source, target, shape) if _is_served(pieces) else None
    if work is None or not work.cuts.are_small(pieces[0].itemsize):
        return None
    parts, first, results = work.cuts.of(pieces), pieces[0], list[torch.Tensor]()
    for written, same, dim, numbers in work.results:
        out = pooled_empty(written, first.dtype, first.device)
        if same is not None:
            out.copy_(results[same])
        elif len(numbers) == 1:
            out.copy_(parts[numbers[0]])
        elif numbers:
            torch.cat([parts[number] for number in numbers], dim, out=out)
        results.append(out)
    return tuple(results)


def reduced_and_cut(
    pieces: Pieces,
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    dropped: tuple[str, ...],
    how: tuple[ReduceOp, int],
) -> Pieces | None:
    """The pieces after a movement that reduces along some axes; None where it is not of this kind.

    Whole pieces are reduced, not their parts: element by element that is the same, in fewer calls.
    """
    work = _reduced_parts(source, target, shape, dropped) if _is_served(pieces) else None
    if work is None or not work.cuts.are_small(pieces[0].itemsize):
        return None
    op, divisor = how
    first = pieces[0]

    def empty(shape: tuple[int, ...]) -> torch.Tensor:
        return pooled_empty(shape, first.dtype, first.device)

    parts = work.cuts.of(
        [reduce_into(empty(tuple(pieces[of[0]].shape)), op, [pieces[k] for k in of], divisor) for of in work.groups]
    )
    return tuple([empty(written).copy_(parts[number]) for written, number in work.results])


def _is_served(pieces: Pieces) -> bool:
    first = pieces[0]
    return not is_traced() and not first.is_meta and first.dtype in _JOINED and first.nbytes <= _SMALL


@final
class _Cuts:
    """Which parts of which pieces are needed, each with a number; parts that make up a piece are cut by one call."""

    def __init__(
        self,
        source: Layout,
        target: Layout,
        shape: tuple[int, ...],
        copies: Sequence[Copy],
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        here, there = holding(source), holding(target)
        shapes = here.shapes(shape) if shapes is None else shapes
        self._is_one = len({*here.devices, *there.devices}) == 1
        self._elements = max(map(math.prod, (*here.shapes(shape), *there.shapes(shape))))
        wanted: dict[int, dict[tuple[Interval, ...], Slices]] = {}
        for each in copies:
            wanted.setdefault(each.origin, {}).setdefault(_intervals(each.source), each.source)
        self._numbers: dict[_Key, int] = {}
        self._cuts: list[tuple[int, _Cut]] = []
        for origin, boxes in wanted.items():
            ordered = sorted(boxes)
            self._numbers |= {(origin, box): len(self._numbers) + k for k, box in enumerate(ordered)}
            self._cuts.append((origin, _cut([boxes[box] for box in ordered], shapes[origin])))

    def are_small(self, itemsize: int) -> bool:
        """Whether all pieces are small, before and after, and lie on one device."""
        return self._is_one and self._elements * itemsize <= _SMALL

    def number(self, copy: Copy) -> int:
        """Which part a copy reads."""
        return self._numbers[copy.origin, _intervals(copy.source)]

    def of(self, pieces: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All parts, by their numbers."""
        parts: list[torch.Tensor] = []
        for origin, cut in self._cuts:
            parts += cut(pieces[origin])
        return parts


def _cut(boxes: Sequence[Slices], shape: tuple[int, ...]) -> _Cut:
    """What gives parts of a piece of this shape: by one call where they make it up."""
    intervals = [_intervals(box) for box in boxes]
    dim = _row(intervals, tuple((0, size) for size in shape))
    if dim is None:
        return lambda piece: [piece[box] for box in boxes]
    if len(boxes) == 1:
        return lambda piece: (piece,)
    sizes = [box[dim][1] - box[dim][0] for box in intervals]
    return lambda piece: piece.split_with_sizes(sizes, dim)


@final
class _JoinedParts:
    """What is cut, and of each result its shape, an earlier one that is the same, and the parts that it has along a dim."""

    def __init__(self, cuts: _Cuts, results: Sequence[tuple[tuple[int, ...], int | None, int, list[int]]]) -> None:
        self.cuts, self.results = cuts, results


@cached(4096, cleared_by=forget_with_residences)
def _joined_parts(source: Layout, target: Layout, shape: tuple[int, ...]) -> _JoinedParts | None:
    written = writings(source, target, shape)
    cuts = _Cuts(source, target, shape, [copy for each in written for copy in each.copies])
    known: dict[object, int] = {}
    results = []
    for piece, each in enumerate(written):
        boxes = [_intervals(copy.target) for copy in each.copies]
        dim = _row(boxes, tuple((0, size) for size in each.shape)) if boxes or 0 not in each.shape else 0
        if dim is None:
            return None
        numbers = [cuts.number(copy) for copy in _along(each, dim)]
        same = known.setdefault((each.shape, *numbers), piece)
        results.append((each.shape, None if same == piece else same, dim, numbers))
    return _JoinedParts(cuts, results)


@final
class _ReducedParts:
    """Which pieces are reduced to one, what is cut of the results, and of each piece of the target its shape and its part."""

    def __init__(
        self, groups: Sequence[tuple[int, ...]], cuts: _Cuts, results: Sequence[tuple[tuple[int, ...], int]]
    ) -> None:
        self.groups, self.cuts, self.results = groups, cuts, results


@cached(4096, cleared_by=forget_with_residences)
def _reduced_parts(
    source: Layout, target: Layout, shape: tuple[int, ...], dropped: tuple[str, ...]
) -> _ReducedParts | None:
    found = contributions(source, target, shape, dropped)
    firsts = [found[same] if isinstance(same, int) else same for same in found]
    groups: dict[tuple[int, ...], int] = {}
    copies: list[Copy] = []
    for each in firsts:
        assert not isinstance(each, int)
        if any(len(writing.copies) != 1 for writing in each):
            return None
        only = [writing.copies[0] for writing in each]
        if any(copy.source != only[0].source for copy in only):
            return None
        group = groups.setdefault(tuple(copy.origin for copy in only), len(groups))
        copies.append(Copy(group, only[0].source, only[0].target))
    here = holding(source)
    cuts = _Cuts(source, target, shape, copies, [here.piece_shape(of[0], shape) for of in groups])
    results = [(box_shape(holding(target).box(k, shape)), cuts.number(copy)) for k, copy in enumerate(copies)]
    return _ReducedParts(list(groups), cuts, results)


def _along(writing: Writing, dim: int) -> list[Copy]:
    """The copies that fill a piece, in their order along a dim."""
    return sorted(writing.copies, key=lambda copy: copy.target[dim].start if copy.target else 0)


def _row(boxes: Sequence[tuple[Interval, ...]], whole: tuple[Interval, ...]) -> int | None:
    """The dim along which boxes, one after another, make up a whole; None where they do not."""
    if not boxes:
        return None
    if list(boxes) == [whole]:
        return 0
    for dim, (low, high) in enumerate(whole):
        ordered = sorted(boxes, key=lambda box: box[dim])
        beside = all((*box[:dim], *box[dim + 1 :]) == (*whole[:dim], *whole[dim + 1 :]) for box in ordered)
        follow = all(one[dim][1] == other[dim][0] for one, other in pairwise(ordered))
        if beside and follow and (ordered[0][dim][0], ordered[-1][dim][1]) == (low, high):
            return dim
    return None


def _intervals(of: Slices) -> tuple[Interval, ...]:
    return tuple((each.start, each.stop) for each in of)
