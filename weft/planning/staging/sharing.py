"""Who brings what into a cell: pieces from beyond are shared out evenly among those that want all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ...sharding.geometry import Box, volume
from ...sharding.mesh import Slot

__all__ = ["CellEntry", "shared_out"]

ENOUGH = 32
"""Indices of a dim for each share, so that shares are equal to a few hundredths."""


@final
@dataclass(frozen=True, slots=True)
class CellEntry:
    """A box that one slot beyond a cell gives to one slot within it, for all that want it there."""

    sender: Slot
    taker: Slot
    box: Box


def shared_out(
    pieces: Sequence[tuple[Sequence[Slot], Box]], takers: Sequence[Slot], turn: int = 0
) -> tuple[CellEntry, ...]:
    """Pieces, each with its holders, in as many nearly equal shares as there are takers; a piece on a border is cut.

    Holders take turns, beginning with number `turn`.

    >>> [(each.sender, each.taker, each.box) for each in shared_out([([5], ((0, 4),)), ([6], ((4, 8),))], [0, 1])]
    [(5, 0, ((0, 4),)), (6, 1, ((4, 8),))]
    >>> [(each.sender, each.taker, each.box) for each in shared_out([([5, 6], ((0, 5), (0, 2)))], [0, 1])]
    [(5, 0, ((0, 3), (0, 2))), (6, 1, ((3, 5), (0, 2)))]
    """
    total = sum(volume(where) for _, where in pieces)
    found: list[CellEntry] = []
    at = 0
    for holders, where in pieces:
        size = volume(where)
        if not size:
            continue
        for number, part in _cut(where, size, at, total, len(takers)):
            found.append(CellEntry(holders[(turn + len(found)) % len(holders)], takers[number], part))
        at += size
    return tuple(found)


def _cut(where: Box, size: int, at: int, total: int, count: int) -> Iterator[tuple[int, Box]]:
    """The parts of a box that belong to each share, cut at the index nearest to the border."""
    dim = _dim_to_cut(where, count)
    if dim is None:
        yield min(at * count // total, count - 1), where
        return
    low, high = where[dim]
    step = size // (high - low)
    first, last = at * count // total, -(-(at + size) * count // total) - 1
    start = low
    for number in range(first, last + 1):
        border = high if number == last else low + _nearest(math.ceil((number + 1) * total / count) - at, step)
        border = max(start, min(high, border))
        if border > start:
            yield number, (*where[:dim], (start, border), *where[dim + 1 :])
        start = border


def _dim_to_cut(where: Box, count: int) -> int | None:
    """The first dim that has indices enough for nearly equal parts, which lie in one stretch each; else the longest one."""
    sizes = [high - low for low, high in where]
    first = next((dim for dim, size in enumerate(sizes) if size > 1), None)
    if first is not None and sizes[first] >= ENOUGH * count:
        return first
    return max(range(len(sizes)), key=sizes.__getitem__, default=None)


def _nearest(elements: int, step: int) -> int:
    return (elements + step // 2) // step
