"""`Messages`: what one process copies within itself, sends to each other process and receives from each.

A *part* is a box of one stored tensor. Both ends list the parts between them in the same order, so nothing but
the elements themselves travels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from ....sharding.geometry import Box, box_shape, whole_box
from ...holding import slices
from .. import world

__all__ = ["Join", "Message", "MessageList", "Messages", "Range", "StoredBox", "part"]

Range = tuple[int, int, int]
"""A stretch of one stored tensor, flat: which tensor, start and stop."""


@final
@dataclass(frozen=True, slots=True)
class StoredBox:
    """A box of one stored tensor."""

    piece: int
    where: tuple[slice, ...]
    shape: tuple[int, ...]
    size: int
    stretch: Range | None
    """Where the box lies in the flat tensor, if its elements lie there one after another."""
    is_whole: bool = False
    """Whether it is known to be all of the tensor."""


@final
@dataclass(frozen=True, slots=True)
class Message:
    """The parts that go to one process, or come from it, one after another."""

    parts: tuple[StoredBox, ...]
    size: int
    stretch: Range | None
    """The stretch of one tensor that holds all of them in order, if one does: then nothing has to be packed."""


@final
@dataclass(frozen=True, slots=True)
class Join:
    """A new tensor whose parts lie beside each other along one dim: from this process, or (its index) from another."""

    piece: int
    dim: int
    shape: tuple[int, ...]
    parts: tuple[StoredBox | int, ...]
    shapes: tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True, slots=True)
class Messages:
    """One process's part of an exchange among a group."""

    copies: tuple[tuple[StoredBox, StoredBox], ...]
    """From a stored tensor to a new one, within this process."""
    sends: tuple[tuple[int, Message], ...]
    """To which process of the group, beginning with the right-hand neighbour: not all send to the first at once."""
    receives: tuple[tuple[int, Message], ...]
    joins: tuple[Join, ...]
    """New tensors that are put together in one go, from copies and receives that are not unpacked by themselves."""

    @property
    def joined(self) -> frozenset[int]:
        """From which processes comes what is joined."""
        return frozenset(each for join in self.joins for each in join.parts if isinstance(each, int))


def part(piece: int, inner: Box, shape: Sequence[int]) -> StoredBox:
    """A box of the stored tensor number `piece`, which has this shape.

    >>> part(0, ((1, 3), (0, 4)), (4, 4)).stretch, part(0, ((0, 4), (1, 3)), (4, 4)).stretch
    ((0, 4, 12), None)
    """
    sizes = box_shape(inner)
    is_whole = sizes == tuple(shape)
    return StoredBox(piece, slices(inner), sizes, math.prod(sizes), _stretch(piece, inner, shape), is_whole)


def whole_part(piece: int, where: Box) -> StoredBox:
    """All of the stored tensor number `piece`, which has the elements of a box."""
    shape = box_shape(where)
    return part(piece, whole_box(shape), shape)


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


_Pair = tuple[object, StoredBox]
"""A part, and what both ends sort it by."""


@final
class MessageList:
    """What this process copies, sends and receives, put down part by part; both ends sort parts by their keys."""

    def __init__(self) -> None:
        self._copies: list[tuple[StoredBox, StoredBox]] = []
        self._leaving: dict[int, list[_Pair]] = {}
        self._arriving: dict[int, list[_Pair]] = {}
        self._apart = 0

    def copy(self, given: StoredBox, into: StoredBox) -> None:
        """Something stays in this process."""
        self._copies.append((given, into))

    def leave(self, to: int, key: object, given: StoredBox) -> None:
        """Something goes to another one."""
        self._leaving.setdefault(to, []).append((key, given))

    def arrive(self, by: int, key: object, into: StoredBox) -> None:
        """Something comes from another one."""
        self._arriving.setdefault(by, []).append((key, into))

    def arrive_apart(self, by: int, key: object, where: Box) -> None:
        """Something comes in a tensor of its own, one after another."""
        self.arrive(by, key, whole_part(self._apart, where))
        self._apart += 1

    def among(self, processes: Sequence[int]) -> Messages:
        """The messages of this process to and from each of some."""
        arriving = _by_process(self._arriving, processes)
        joins = tuple(join for join in map(_join, *_by_piece(self._copies, arriving)) if join is not None)
        joined = {join.piece for join in joins}
        kept = tuple((source, target) for source, target in self._copies if target.piece not in joined)
        return Messages(kept, _by_process(self._leaving, processes), arriving, joins)


_Beside = list[tuple[StoredBox, StoredBox | int]]
"""What a new tensor is made of: each part of it, and where that comes from."""


def _by_piece(
    copies: Sequence[tuple[StoredBox, StoredBox]], arriving: Sequence[tuple[int, Message]]
) -> tuple[list[int], list[_Beside]]:
    """New tensors whose parts come from several processes, one from each."""
    found: dict[int, _Beside] = {}
    several = set()
    for index, message in arriving:
        for into in message.parts:
            found.setdefault(into.piece, []).append((into, index))
            if len(message.parts) > 1 or message.stretch is not None:
                several.add(into.piece)  # it arrives in its place, or with others
    for source, into in copies:
        if into.piece in found:
            found[into.piece].append((into, source))
    kept = {piece: parts for piece, parts in found.items() if piece not in several}
    return list(kept), list(kept.values())


def _join(piece: int, parts: _Beside) -> Join | None:
    """How a new tensor is put together, if its parts lie beside each other along one dim."""
    first = parts[0][0]
    ends: list[tuple[int, int]] = []
    for dim, size in enumerate(first.shape):
        starts = {(into.where[dim].start, into.where[dim].stop, into.where[dim].step) for into, _ in parts}
        ends.append((len(starts), dim))
        if len(starts) == 1 and starts != {(0, size, None)}:
            return None
    split = [dim for count, dim in ends if count > 1]
    if len(split) != 1:
        return None
    dim, at = split[0], 0
    parts = sorted(parts, key=lambda each: int(each[0].where[dim].start))
    for into, _ in parts:
        if (into.where[dim].start, into.where[dim].step) != (at, None):
            return None
        at += into.shape[dim]
    shape = (*first.shape[:dim], at, *first.shape[dim + 1 :])
    return Join(piece, dim, shape, tuple(origin for _, origin in parts), tuple(into.shape for into, _ in parts))


def _by_process(pairs: Mapping[int, Sequence[_Pair]], processes: Sequence[int]) -> tuple[tuple[int, Message], ...]:
    here = world.current().process
    start = processes.index(here) + 1 if here in processes else 0
    order = [*range(start, len(processes)), *range(start)]
    listed = [(index, _message_of(pairs.get(processes[index], ()))) for index in order]
    return tuple((index, message) for index, message in listed if message.size)


def _message_of(pairs: Iterable[_Pair]) -> Message:
    """The parts in the order that both ends know."""
    key: Callable[[_Pair], object] = lambda pair: pair[0]  # noqa: E731 - a name for the line below
    parts = tuple(part for _, part in sorted(pairs, key=key))  # type: ignore[arg-type]
    return Message(parts, sum(part.size for part in parts), _joined(parts))


def _joined(parts: Sequence[StoredBox]) -> Range | None:
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
