"""Which blocks of scores a device computes: positions of its queries against positions of keys, without what a causal mask hides.

A device has stretches of positions. For a causal mask to give all devices the same work, devices swap halves of theirs:

    device      0       1       2       3
    has         0 1     2 3     4 5     6 7
    swapped     0 7     2 5     3 4     1 6      the position of each half; each pair adds up to 7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from ...caches import cached
from ...planning.rearrangement import Part, Run
from ...sharding.geometry import Interval, interval

__all__ = ["ScoreBlock", "Stretches", "blocks", "cuts", "scores", "swap_parts", "swapped"]

Stretches = tuple[Interval, ...]
"""The positions that a device has, in the order in which it has them, ascending."""


@dataclass(frozen=True, slots=True)
class ScoreBlock:
    """Rows (queries) and columns (keys) of what a device has, and whether a causal mask cuts them along the diagonal."""

    rows: Interval
    columns: Interval
    is_causal: bool = False

    @property
    def scores(self) -> int:
        """How many scores are computed."""
        rows, columns = (stop - start for start, stop in (self.rows, self.columns))
        return rows * (rows + 1) // 2 if self.is_causal else rows * columns


def scores(found: Sequence[ScoreBlock]) -> int:
    """How many scores blocks have together."""
    return sum(block.scores for block in found)


@cached(8192, of_sizes=True)
def blocks(rows: Stretches, columns: Stretches, is_causal: bool) -> tuple[ScoreBlock, ...]:
    """The blocks of scores between queries and keys at these positions; with a causal mask, none that is hidden.

    >>> blocks(((4, 8),), ((0, 6),), True)
    (ScoreBlock(rows=(0, 4), columns=(0, 4), is_causal=False), ScoreBlock(rows=(2, 4), columns=(4, 6), is_causal=False), ScoreBlock(rows=(0, 2), columns=(4, 6), is_causal=True))
    """
    if not _count(rows) or not _count(columns):
        return ()
    everything = (0, _count(rows)), (0, _count(columns))
    if not is_causal or rows == columns:
        return (ScoreBlock(*everything, is_causal),)
    full: list[ScoreBlock] = []
    cut: list[ScoreBlock] = []
    for (at_row, (first, last)), (at_column, (start, stop)) in product(_placed(rows), _placed(columns)):
        past = min(stop, first)
        if start < past:
            full.append(ScoreBlock((at_row, at_row + last - first), (at_column, at_column + past - start)))
        low, high = max(start, first), min(stop, last)
        if low < high:
            here = at_row + low - first, at_row + high - first
            seen = at_column + low - start, at_column + high - start
            cut.append(ScoreBlock(here, seen, is_causal=True))
            if high < last:
                full.append(ScoreBlock((here[1], at_row + last - first), seen))
    return (*_joined(full), *cut)


def _count(stretches: Stretches) -> int:
    return sum(stop - start for start, stop in stretches)


def _placed(stretches: Stretches) -> list[tuple[int, Interval]]:
    """Stretches of positions, each with where it begins in what a device has."""
    at, found = 0, []
    for start, stop in stretches:
        found.append((at, (start, stop)))
        at += stop - start
    return found


def _joined(found: Sequence[ScoreBlock]) -> list[ScoreBlock]:
    """Blocks that lie side by side, as one."""
    result: list[ScoreBlock] = []
    for block in found:
        last = result[-1] if result else None
        if last is not None and last.rows == block.rows and last.columns[1] == block.columns[0]:
            result[-1] = ScoreBlock(last.rows, (last.columns[0], block.columns[1]))
        elif last is not None and last.columns == block.columns and last.rows[1] == block.rows[0]:
            result[-1] = ScoreBlock((last.rows[0], block.rows[1]), last.columns)
        else:
            result.append(block)
    return result


@cached(4096, of_sizes=True)
def cuts(size: int, counts: tuple[int, ...]) -> tuple[Interval, ...]:
    """Where the pieces of a dim lie that is cut so many times, major first.

    >>> cuts(10, (2, 2))
    ((0, 3), (3, 5), (5, 8), (8, 10))
    """
    return tuple(interval(size, list(zip(counts, at, strict=True))) for at in product(*map(range, counts)))


@cached(1024, of_sizes=True)
def swapped(bounds: tuple[Interval, ...]) -> tuple[Stretches, ...]:
    """What each device has after it has swapped its last half with the device that is as far from the other end.

    >>> swapped(((0, 2), (2, 4), (4, 6), (6, 8)))
    (((0, 1), (7, 8)), ((2, 3), (5, 6)), ((3, 5),), ((1, 2), (6, 7)))
    """
    result = []
    for (start, stop), (_, other_stop), count in _pairs(bounds):
        stretches = sorted([(start, stop - count), (other_stop - count, other_stop)])
        result.append(_as_one([each for each in stretches if each[0] < each[1]]))
    return tuple(result)


def _as_one(stretches: list[Interval]) -> Stretches:
    if len(stretches) == 2 and stretches[0][1] == stretches[1][0]:
        return ((stretches[0][0], stretches[1][1]),)
    return tuple(stretches)


def _pairs(bounds: tuple[Interval, ...]) -> list[tuple[Interval, Interval, int]]:
    """For each device its positions, those of the one it swaps with, and how many they swap."""
    found = []
    for mine, other in zip(bounds, reversed(bounds), strict=True):
        count = min(mine[1] - mine[0], other[1] - other[0]) // 2
        found.append((mine, other, count if mine != other else 0))
    return found


def swap_parts(shape: Sequence[int], dim: int, bounds: tuple[Interval, ...], *, back: bool) -> tuple[Part, ...]:
    """A tensor made of what devices have after they have swapped along a dim; `back`: of what they had before."""
    parts = []
    for (start, _), stretches in zip(bounds, swapped(bounds), strict=True):
        for at, (first, last) in _placed(stretches):
            here, there = (start + at, first) if back else (first, start + at)
            parts.append(
                Part(0, tuple(Run(last - first, here, there) if d == dim else Run(n) for d, n in enumerate(shape)))
            )
    return tuple(parts)
