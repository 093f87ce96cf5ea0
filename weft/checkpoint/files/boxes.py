"""Boxes of a tensor: whether some tile it, so that each element is in one of them and in no other, and some that do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from ...sharding.geometry import Box, box_shape, box_text, common

__all__ = ["boxes_of", "can_be", "tiling_fault"]

_MOST_IRREGULAR = 2048
"""Boxes that are no grid are compared each with each, up to so many."""


def can_be(shape: Sequence[int]) -> bool:
    """Whether there can be a tensor of this shape; torch counts the strides of empty ones too.

    >>> can_be((0, 1 << 20)), can_be((0, 1 << 40, 1 << 40))
    (True, False)
    """
    return math.prod(max(1, size) for size in shape) < 1 << 59


def boxes_of(shape: Sequence[int], most: int) -> Iterator[Box]:
    """A tensor in boxes of at most so many elements, in row-major order.

    >>> list(boxes_of((3, 2), 4))
    [((0, 2), (0, 2)), ((2, 3), (0, 2))]
    """
    row = math.prod(shape[1:])
    if math.prod(shape) <= most:
        yield tuple((0, size) for size in shape)
    elif row > most:
        for i in range(shape[0]):
            yield from (((i, i + 1), *box) for box in boxes_of(shape[1:], most))
    else:
        for first in range(0, shape[0], most // row):
            yield (first, min(first + most // row, shape[0])), *((0, size) for size in shape[1:])


def tiling_fault(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """What is wrong with boxes that should tile a tensor of this shape; None if they do.

    >>> tiling_fault((4,), [((0, 2),), ((2, 4),)])
    >>> tiling_fault((4,), [((0, 2),), ((3, 4),)])
    'the shards hold 3 of 4 elements'
    >>> tiling_fault((4,), [((0, 2),), ((1, 3),)])
    'the shards [0:2] and [1:3] overlap'
    """
    for box in boxes:
        if len(box) != len(shape):
            return f"the shard {box_text(box)} has {len(box)} dims, but the tensor has {len(shape)}"
        if not all(0 <= start < stop <= size for (start, stop), size in zip(box, shape, strict=True)):
            return f"the shard {box_text(box)} is empty or leaves a tensor of shape {tuple(shape)}"
    if _are_grid(shape, boxes):
        return None
    if len(boxes) > _MOST_IRREGULAR:
        return f"{len(boxes)} shards are no grid"
    for a, b in combinations(boxes, 2):
        if common(a, b):
            return f"the shards {box_text(a)} and {box_text(b)} overlap"
    held, size = sum(math.prod(box_shape(box)) for box in boxes), math.prod(shape)
    return None if held == size else f"the shards hold {held} of {size} elements"


def _are_grid(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether the boxes are all combinations of the parts of each dim; layouts make such boxes, and it is quick to see."""
    parts = [sorted({box[dim] for box in boxes}) for dim in range(len(shape))]
    for size, cuts in zip(shape, parts, strict=True):
        if not cuts or cuts[0][0] != 0 or cuts[-1][1] != size or any(a[1] != b[0] for a, b in pairwise(cuts)):
            return False
    return len(boxes) == len(set(boxes)) == math.prod(map(len, parts))
