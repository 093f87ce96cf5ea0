"""`Parcels`: what one process copies within itself, sends to each other process and receives from each.

A *part* is a box of one stored tensor. Both ends list the parts between them in the same order, so nothing but
the elements themselves travels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ...sharding.geometry import Box, box_shape
from ..holding import slices

__all__ = ["Leg", "Pair", "Parcels", "Part", "Range", "leg_of", "parcelled", "part"]

Range = tuple[int, int, int]
"""A stretch of one stored tensor, flat: which tensor, start and stop."""


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A box of one stored tensor."""

    piece: int
    where: tuple[slice, ...]
    shape: tuple[int, ...]
    size: int
    stretch: Range | None
    """Where the box lies in the flat tensor, if its elements lie there one after another."""


@final
@dataclass(frozen=True, slots=True)
class Leg:
    """The parts that go to one process, or come from it, one after another."""

    parts: tuple[Part, ...]
    size: int
    stretch: Range | None
    """The stretch of one tensor that holds all of them in order, if one does: then nothing has to be packed."""


@final
@dataclass(frozen=True, slots=True)
class Parcels:
    """One process's part of an exchange among a group."""

    copies: tuple[tuple[Part, Part], ...]
    """From a stored tensor to a new one, within this process."""
    sends: tuple[Leg, ...]
    """For each process of the group."""
    receives: tuple[Leg, ...]


def part(piece: int, inner: Box, shape: Sequence[int]) -> Part:
    """A box of the stored tensor number `piece`, which has this shape.

    >>> part(0, ((1, 3), (0, 4)), (4, 4)).stretch, part(0, ((0, 4), (1, 3)), (4, 4)).stretch
    ((0, 4, 12), None)
    """
    sizes = box_shape(inner)
    return Part(piece, slices(inner), sizes, math.prod(sizes), _stretch(piece, inner, shape))


def _stretch(piece: int, inner: Box, shape: Sequence[int]) -> Range | None:
    """A box is a stretch if at most one dim is cut, and all before that one have a single index."""
    start, run, open_ = 0, 1, True
    for (low, high), size in zip(reversed(inner), reversed(shape), strict=True):
        if not open_ and high - low != 1:
            return None
        start += low * run
        if open_:
            open_ = (low, high) == (0, size)
        run *= size
    size = math.prod(box_shape(inner))
    return piece, start, start + size


Pair = tuple[object, Part]
"""A part, and what both ends sort it by."""


def parcelled(
    copies: Iterable[tuple[Part, Part]],
    sends: Mapping[int, Sequence[Pair]],
    receives: Mapping[int, Sequence[Pair]],
    processes: Sequence[int],
) -> Parcels:
    """The parcels of this process, given what goes to and comes from each."""
    leaving = tuple(leg_of(sends.get(process, ())) for process in processes)
    arriving = tuple(leg_of(receives.get(process, ())) for process in processes)
    return Parcels(tuple(copies), leaving, arriving)


def leg_of(pairs: Iterable[Pair]) -> Leg:
    """The parts in the order that both ends know."""
    key: Callable[[Pair], object] = lambda pair: pair[0]  # noqa: E731 - a name for the line below
    parts = tuple(part for _, part in sorted(pairs, key=key))  # type: ignore[arg-type]
    return Leg(parts, sum(part.size for part in parts), _joined(parts))


def _joined(parts: Sequence[Part]) -> Range | None:
    """The one stretch that parts make up, if they do."""
    whole: Range | None = None
    for each in parts:
        if each.stretch is None:
            return None
        if whole is None:
            whole = each.stretch
        elif whole[0] == each.stretch[0] and whole[2] == each.stretch[1]:
            whole = (whole[0], whole[1], each.stretch[2])
        else:
            return None
    return whole
