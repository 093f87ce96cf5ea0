"""Strides: a sharded tensor has those that plain torch would give it, and its pieces lie in memory in that order.

Where each device has memory of its own, no memory has the strides of the whole. They say in which order the dims of every
piece stand there, and what an op makes of pieces that stand so is what it would make of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod

import torch

from ..caches import cached
from .on_paper import aside

__all__ = [
    "FEW",
    "dense_strides",
    "elementwise_strides",
    "has_single_dims",
    "has_windows",
    "in_order",
    "is_dense",
    "is_in_order",
    "order_of",
    "reach_of",
    "row_major",
]

Strides = tuple[int, ...]

FEW = 1 << 12
"""Elements of tensors of which it is found out how dims of size 1 lie: nothing is read by them, but kernels go by them."""


def row_major(shape: Sequence[int]) -> Strides:
    """The strides of a contiguous tensor of this shape.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def reach_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many places in memory such a tensor reaches over, from its first element to the end of its last.

    >>> reach_of((2, 3), (8, 2)), reach_of((2, 0), (1, 1))
    (13, 0)
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


@cached(1 << 14, of_sizes=True)
def dense_strides(shape: tuple[int, ...], strides: Strides) -> Strides:
    """The strides of a copy of such a tensor: without gaps, its dims in the same order, as `clone` makes it.

    >>> dense_strides((2, 3), (12, 2)), dense_strides((2, 3), (1, 8)), dense_strides((2, 3), (0, 1))
    ((3, 1), (1, 2), (3, 1))
    """
    with aside():
        return torch.empty_strided(shape, strides, device="meta").clone().stride()


def elementwise_strides(tensors: Sequence[torch.Tensor], *, numbers: bool = False) -> Strides:
    """The strides of what an elementwise op makes of some tensors: without gaps, dims in the order of the first that tells.

    `numbers`: there are numbers beside them, which torch takes for tensors of another shape.

    >>> rows, columns = torch.empty(2, 3), torch.empty(3, 2).T
    >>> elementwise_strides([rows, columns]), elementwise_strides([columns, rows])
    ((3, 1), (1, 2))
    """
    return _elementwise_strides(tuple([(tuple(x.shape), x.stride()) for x in tensors]), numbers)


@cached(4096, of_sizes=True)
def _elementwise_strides(given: tuple[tuple[tuple[int, ...], Strides], ...], numbers: bool) -> Strides:
    # Torch's own account of these ops loads its compiler, which takes seconds at the first op of a program.
    shape = _met([own for own, _ in given])
    if all(type(size) is int for size in shape) and all(own == shape for own, _ in given):
        alike = None if numbers and 0 not in shape else _strides_alike(tuple(shape), [strides for _, strides in given])
        if alike is not None:
            return alike
    steps = [_broadcast(own, strides, shape) for own, strides in given]
    order = list(reversed(range(len(shape))))
    for last in range(1, len(order)):
        at = last
        for before in reversed(range(last)):
            finer = _finer(order[before], order[at], steps, shape)
            if finer < 0:
                break
            if finer > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    if order == list(reversed(range(len(shape)))):
        return row_major(shape)
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def _strides_alike(shape: tuple[int, ...], given: Sequence[Strides]) -> Strides | None:
    """Those of tensors of one shape that all lie alike, of which torch need not find the order; None where they do not.

    >>> _strides_alike((2, 1), [(1, 2)]), _strides_alike((1, 3, 1, 2), [(3, 1, 1, 3)])
    ((1, 1), (6, 1, 6, 3))
    """
    orders = [tuple(range(len(shape))), *([_CHANNELS_LAST] if len(shape) == len(_CHANNELS_LAST) else [])]
    for order in orders:
        sizes = [shape[dim] for dim in order]
        wanted = dict(zip(order, row_major(sizes), strict=True))
        if 0 in shape or all(n == 1 or own[dim] == wanted[dim] for own in given for dim, n in enumerate(shape)):
            return tuple(wanted[dim] for dim in range(len(shape)))
    return given[0] if is_dense(shape, given[0]) and all(strides == given[0] for strides in given) else None


_CHANNELS_LAST = (0, 2, 3, 1)


def _met(shapes: Sequence[tuple[int, ...]]) -> Sequence[int]:
    """What shapes are broadcast to. Sizes that a compiler leaves open, and shapes that do not meet, are torch's to judge."""
    rank = max(map(len, shapes), default=0)
    if all(type(size) is int for shape in shapes for size in shape):
        columns = [{shape[dim] for shape in shapes if -dim <= len(shape)} - {1} for dim in range(-rank, 0)]
        if all(len(sizes) <= 1 for sizes in columns):
            return tuple(next(iter(sizes), 1) for sizes in columns)
    return tuple(torch.broadcast_shapes(*shapes))


def _broadcast(shape: tuple[int, ...], strides: Strides, whole: Sequence[int]) -> Strides:
    """The strides of a tensor that is broadcast to a shape."""
    new = len(whole) - len(shape)
    kept = (0 if n == 1 and whole[new + d] != 1 else strides[d] for d, n in enumerate(shape))
    return *[0] * new, *kept


def _finer(one: int, other: int, steps: Sequence[Strides], shape: Sequence[int]) -> int:
    """Which of two dims has the smaller steps: below 0 the first, above 0 the other, 0 where no tensor tells."""
    for strides in steps:
        if strides[one] and strides[other]:
            if strides[one] != strides[other]:
                return -1 if strides[one] < strides[other] else 1
            if shape[one] > shape[other]:
                return 1
    return 0


@cached(1 << 14, of_sizes=True)
def is_dense(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether elements lie side by side, each in one place, in whatever order of the dims.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (6, 2))
    (True, False)
    """
    step = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


def has_windows(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether two dims have one stride, as those of windows that overlap: it leaves their order open.

    >>> has_windows((3, 2), (1, 1)), has_windows((3, 1), (1, 1))
    (True, False)
    """
    known = [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and stride]
    return any(one == other for one, other in combinations(known, 2))  # no set: sizes that are left open have no hash


def has_single_dims(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether dims of size 1 may lie in a way of their own, by which kernels go, of few elements.

    >>> has_single_dims((2, 1, 2), (4, 1, 1)), has_single_dims((2, 1, 2), (2, 2, 1))
    (True, False)
    """
    if 1 not in shape or any(type(size) is not int for size in shape):  # what a compiler leaves open stays so
        return False
    return 1 < prod(shape) <= FEW and strides != row_major(shape)


def is_in_order(piece: torch.Tensor, strides: Strides) -> bool:
    """Whether a piece has no gaps, and its dims stand in the order of these strides, which are those of the whole."""
    shape, own = tuple(piece.shape), piece.stride()
    wanted = dense_strides(shape, strides)
    return own == wanted or 0 in shape or all(a == b or n == 1 for a, b, n in zip(own, wanted, shape, strict=True))


def in_order(piece: torch.Tensor, strides: Strides) -> torch.Tensor:
    """A piece with its dims in the order of the whole's strides: itself, or a copy where they stand otherwise."""
    if is_in_order(piece, strides):
        return piece
    shape = tuple(piece.shape)
    return torch.empty_strided(shape, dense_strides(shape, strides), dtype=piece.dtype, device=piece.device).copy_(
        piece
    )


@cached(1 << 14, of_sizes=True)
def order_of(shape: tuple[int, ...], strides: Strides) -> tuple[int, ...] | None:
    """The dims of a tensor as they stand in memory, the coarsest first; None: as they are numbered.

    >>> order_of((2, 3), (1, 2)), order_of((2, 3), (3, 1))
    ((1, 0), None)
    """
    dense = dense_strides(shape, strides)
    order = sorted(range(len(shape)), key=lambda dim: (-dense[dim], dim))
    moved = [dim for dim in order if shape[dim] > 1]
    return None if moved == sorted(moved) or 0 in shape else tuple(order)
