"""How one dim is cut by nested balanced splits, forwards and backwards, by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...caches import cached
from ...sharding.geometry import Interval, piece

__all__ = ["Coords", "cuts", "flat_index", "locate", "meetings", "overlapping"]

Coords = tuple[int, ...]
"""One coordinate per splitting axis, major first."""


@cached(1024)
def cuts(size: int, counts: Coords) -> tuple[Interval, ...]:
    """Every interval of nested balanced cuts, in row-major order of the coordinates.

    >>> cuts(10, (2, 2))
    ((0, 3), (3, 5), (5, 8), (8, 10))
    """
    intervals = [(0, size)]
    for count in counts:
        inner = [(start + low, start + high) for start, stop in intervals for low, high in _pieces(stop - start, count)]
        intervals = inner
    return tuple(intervals)


@cached(4096)
def _pieces(size: int, count: int) -> tuple[Interval, ...]:
    return tuple(piece(size, count, i) for i in range(count))


@cached(1024)
def meetings(size: int, first: Coords, second: Coords) -> tuple[tuple[int, int, Interval], ...]:
    """Where pieces of one nested cut meet pieces of another: their row-major indices and the common interval, in order.

    >>> meetings(6, (2,), (3,))
    ((0, 0, (0, 2)), (0, 1, (2, 3)), (1, 1, (3, 4)), (1, 2, (4, 6)))
    """
    ours, theirs = cuts(size, first), cuts(size, second)
    found = []
    i = j = position = 0
    while position < size:
        while ours[i][1] <= position:
            i += 1
        while theirs[j][1] <= position:
            j += 1
        stop = min(ours[i][1], theirs[j][1])
        found.append((i, j, (position, stop)))
        position = stop
    return tuple(found)


def locate(size: int, counts: Sequence[int], position: int) -> tuple[Coords, Interval]:
    """The coordinates and the interval of the piece that holds a position.

    >>> locate(10, (2, 2), 4)
    ((0, 1), (3, 5))
    """
    start, stop = 0, size
    coords = []
    for count in counts:
        quotient, more = divmod(stop - start, count)
        offset = position - start
        larger = (quotient + 1) * more
        index = offset // (quotient + 1) if offset < larger else more + (offset - larger) // quotient
        low, high = piece(stop - start, count, index)
        start, stop = start + low, start + high
        coords.append(index)
    return tuple(coords), (start, stop)


def overlapping(size: int, counts: Sequence[int], start: int, stop: int) -> Iterator[tuple[Coords, Interval]]:
    """The pieces that meet `[start, stop)`, each cut to it, in order; pieces without elements are left out.

    >>> list(overlapping(10, (2, 2), 4, 7))
    [((0, 1), (4, 5)), ((1, 0), (5, 7))]
    """
    position = start
    while position < stop:
        coords, (_, high) = locate(size, counts, position)
        yield coords, (position, min(high, stop))
        position = high


def flat_index(counts: Sequence[int], coords: Sequence[int]) -> int:
    """The row-major index of coordinates.

    >>> flat_index((2, 4), (1, 2))
    6
    """
    index = 0
    for count, coord in zip(counts, coords, strict=True):
        index = index * count + coord
    return index
