"""Buckets: how the parts that go from one process to another are put into messages. Both ends work it out alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ...sharding.geometry import Box, whole_box

__all__ = ["ALONE", "Cut", "PartSize", "buckets"]

ALONE = 1 << 20
"""Bytes from which on a part has messages of its own: they can leave from its place, and arrive there."""


@final
@dataclass(frozen=True, slots=True)
class PartSize:
    """The shape of a part and the bytes of one of its elements.

    >>> PartSize((4, 8), 2).nbytes
    64
    """

    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The bytes of the part."""
        return math.prod(self.shape) * self.itemsize


@final
@dataclass(frozen=True, slots=True)
class Cut:
    """A box of one of the parts."""

    part: int
    box: Box


def buckets(parts: Sequence[PartSize], limit: int, alone: int = ALONE) -> list[list[Cut]]:
    """The messages that carry some parts, none of more than `limit` bytes unless a single element has more.

    Elements of more bytes come first, so that each lies at a multiple of its size. Parts of `alone` bytes are not packed.

    >>> [[(each.part, each.box) for each in message] for message in buckets([PartSize((3,), 4), PartSize((2,), 8)], 20)]
    [[(1, ((0, 2),))], [(0, ((0, 3),))]]
    """
    found: list[list[Cut]] = []
    packed: list[Cut] = []
    room = limit
    for number in sorted(range(len(parts)), key=lambda number: -parts[number].itemsize):
        part = parts[number]
        if part.nbytes >= min(alone, limit):
            found.extend([Cut(number, box)] for box in _rows(part, limit))
            continue
        if part.nbytes > room:
            found.append(packed)
            packed, room = [], limit
        packed.append(Cut(number, whole_box(part.shape)))
        room -= part.nbytes
    return [*found, packed] if packed else found


def _rows(part: PartSize, limit: int) -> Iterator[Box]:
    """A part in boxes of at most `limit` bytes, each of which lies in one stretch of the part."""
    yield from _below(part.shape, (), limit // part.itemsize)


def _below(shape: tuple[int, ...], outer: Box, limit: int) -> Iterator[Box]:
    dim = len(outer)
    if math.prod(shape[dim:]) <= limit or dim == len(shape):
        yield (*outer, *((0, size) for size in shape[dim:]))
        return
    inner = math.prod(shape[dim + 1 :])
    rows = limit // inner
    for start in range(0, shape[dim], max(1, rows)):
        if rows:
            stop = min(start + rows, shape[dim])
            yield (*outer, (start, stop), *((0, size) for size in shape[dim + 1 :]))
        else:
            yield from _below(shape, (*outer, (start, start + 1)), limit)
