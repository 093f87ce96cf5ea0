"""`Parcels`: which parts of a state's tensors this process copies, and which messages it sends and receives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch

from ...caches import cached
from ...planning import Transfer
from ...planning.states import Passage, StatePlan
from ...planning.states.buckets import ALONE, Cut, PartSize, buckets
from ...planning.states.passage import Position, shifted
from ...sharding.mesh import DeviceMesh, Slot
from ..holding import Pieces
from ..machine import forget_with_residences, residence
from . import world
from .group import Processes
from .steps.occupancy import occupancy, slots_of, stored_part
from .transport.messages import StoredBox

__all__ = ["Bucket", "KeptPart", "Parcel", "Parcels", "bucketed", "meshes_of", "parcels"]


@final
@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part of a lot that stays in this process."""

    lot: int
    given: StoredBox
    into: StoredBox
    nbytes: int


@final
@dataclass(frozen=True, slots=True)
class DtypeRun:
    """Parts of a message that have one dtype: which of its bytes, which of its parts, and how many elements each has."""

    dtype: torch.dtype
    start: int
    stop: int
    first: int
    last: int
    sizes: list[int]


@final
@dataclass(frozen=True, slots=True)
class Parcel:
    """What one message has: boxes of stored tensors, one after another."""

    places: tuple[tuple[int, int, tuple[slice, ...] | None], ...]
    """Which lot, which piece of it, and which box of that; None for all of it."""
    runs: tuple[DtypeRun, ...]
    nbytes: int
    names: tuple[str, ...]
    """The tensors that it has parts of."""
    dtypes: tuple[torch.dtype, ...]
    """The dtype of each part."""
    sizes: tuple[int, ...]
    """The bytes of each part."""

    def views(self, lots: Sequence[Pieces]) -> list[torch.Tensor]:
        """The boxes where they lie."""
        return [lots[lot][piece] if box is None else lots[lot][piece][box] for lot, piece, box in self.places]


Bucket = tuple[Parcel, ...]
"""The messages that go from one process to another at once."""


@final
@dataclass(frozen=True, slots=True)
class Parcels:
    """What this process does for a state: copies, and messages by the index of the process they go to or come from."""

    copies: tuple[KeptPart, ...]
    leaving: tuple[tuple[int, tuple[Bucket, ...]], ...]
    arriving: tuple[tuple[int, tuple[Bucket, ...]], ...]
    limit: int
    """The most bytes of a bucket."""
    largest: int
    """The bytes of the largest message."""


_Listed = dict[int, list[tuple[int, StoredBox]]]
"""By process: lots, and parts of them."""


@cached(64)
def meshes_of(plan: StatePlan, numbers: tuple[int, ...]) -> tuple[DeviceMesh, ...]:
    """The meshes that some of a plan's passages lead between."""
    passages = [passage for _, passage in plan.passages]
    ends = [end for number in numbers for end in (passages[number].source, passages[number].target)]
    return tuple(dict.fromkeys(end.layout.mesh for end in ends))


@cached(64, cleared_by=forget_with_residences)
def parcels(
    plan: StatePlan,
    numbers: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    processes: Processes,
    *,
    are_packed: bool,
) -> Parcels:
    """What this process does for some of a plan's passages, each of which travels in a dtype.

    `are_packed`: a bucket is one message.
    """
    passages = list(plan.passages)
    names = [passages[number][0].name for number in numbers]
    copies: list[KeptPart] = []
    leaving: _Listed = {}
    arriving: _Listed = {}
    for lot, number in enumerate(numbers):
        work = _work(passages[number][1])
        copies += [KeptPart(lot, given, into, into.size * dtypes[lot].itemsize) for given, into in work.copies]
        for listed, parts in ((leaving, work.leaving), (arriving, work.arriving)):
            for process, part in parts:
                listed.setdefault(process, []).append((lot, part))

    alone = plan.bucket if are_packed else ALONE

    def packed(listed: _Listed) -> tuple[tuple[int, tuple[Bucket, ...]], ...]:
        found: list[tuple[int, tuple[Bucket, ...]]] = []
        before: list[tuple[int, StoredBox]] | None = None
        for index, process in enumerate(processes):
            if process in listed:
                # Who gets the same as the one before, as when parts are gathered, gets the same buckets.
                is_same, before = listed[process] == before, listed[process]
                messages = list(_packed(before, dtypes, names, plan.bucket, alone)) if not is_same else []
                found.append((index, found[-1][1] if is_same else bucketed(messages, plan.bucket)))
        return tuple(found)

    gone, come = packed(leaving), packed(arriving)
    each = [listed for _, listed in (*gone, *come)]
    largest = max((parcel.nbytes for listed in each for bucket in listed for parcel in bucket), default=0)
    return Parcels(tuple(copies), gone, come, plan.bucket, largest)


@final
@dataclass(frozen=True, slots=True)
class _PassageWork:
    """What this process does in a passage: parts of what it stores, and of what it will store."""

    copies: tuple[tuple[StoredBox, StoredBox], ...]
    leaving: tuple[tuple[int, StoredBox], ...]
    """To which process, in the order that both ends know."""
    arriving: tuple[tuple[int, StoredBox], ...]


@cached(8192, cleared_by=forget_with_residences)
def _work(passage: Passage) -> _PassageWork:
    """Who copies, sends and receives what. What a process holds anywhere does not travel to it."""
    source, target = passage.source, passage.target
    if residence(target.layout.mesh).on_paper:
        return _PassageWork((), (), ())  # what has no values goes nowhere
    here = world.current().process
    givers, takers = residence(source.layout.mesh).owners, residence(target.layout.mesh).owners
    held = occupancy(source.layout, here)
    copies: list[tuple[StoredBox, StoredBox]] = []
    arriving: list[tuple[Transfer, int, StoredBox]] = []
    leaving: list[tuple[Transfer, int, StoredBox]] = []
    for slot in occupancy(target.layout, here).slots:
        for each in passage.receives(slot):
            into = _part(target, slot, each)
            near = held.same_shard(each.source_slot)
            if into.size and near is not None:
                copies.append((_part(source, near, each), into))
            elif into.size:
                arriving.append((each, givers[each.source_slot], into))
    for slot in slots_of(source.layout.mesh).get(here, ()):
        for each in passage.sends(slot):
            to = takers[each.target_slot]
            if to == here or not occupancy(target.layout, to).is_first(each.target_slot):
                continue
            given = _part(source, slot, each)
            if given.size and occupancy(source.layout, to).same_shard(slot) is None:
                leaving.append((each, to, given))
    return _PassageWork(tuple(copies), _sorted(leaving), _sorted(arriving))


def _part(position: Position, slot: Slot, transfer: Transfer) -> StoredBox:
    return stored_part(position.layout, position.shape, slot, shifted(transfer.box, position.start))


def _sorted(found: list[tuple[Transfer, int, StoredBox]]) -> tuple[tuple[int, StoredBox], ...]:
    found.sort(key=lambda each: (each[0].source_slot, each[0].target_slot, each[0].box))
    return tuple((process, part) for _, process, part in found)


def _packed(
    parts: Sequence[tuple[int, StoredBox]], dtypes: Sequence[torch.dtype], names: Sequence[str], limit: int, alone: int
) -> Iterable[Parcel]:
    """The messages that carry some parts."""
    for message in buckets([PartSize(part.shape, dtypes[lot].itemsize) for lot, part in parts], limit, alone):
        listed = [(*parts[cut.part], cut) for cut in message]
        runs = tuple(_runs(message, [dtypes[lot] for lot, _, _ in listed]))
        places = tuple((lot, part.piece, _box(part, cut)) for lot, part, cut in listed)
        told = tuple(dict.fromkeys(names[lot] for lot, _, _ in listed))
        each = tuple(dtypes[lot] for lot, _, _ in listed)
        sizes = tuple(_elements(cut) * dtype.itemsize for cut, dtype in zip(message, each, strict=True))
        yield Parcel(places, runs, runs[-1].stop, told, each, sizes)


def bucketed(messages: Sequence[Parcel], limit: int) -> tuple[Bucket, ...]:
    """Messages that go at once, of at most so many bytes together."""
    found: list[list[Parcel]] = []
    room = 0
    for message in messages:
        if message.nbytes > room:
            found.append([])
            room = limit
        found[-1].append(message)
        room -= message.nbytes
    return tuple(map(tuple, found))


def _box(part: StoredBox, cut: Cut) -> tuple[slice, ...] | None:
    """The box of a stored piece that a part of a part is; None for all of it."""
    if part.is_whole and _elements(cut) == part.size:
        return None
    return tuple(
        slice(outer.start + start, outer.start + stop) for outer, (start, stop) in zip(part.where, cut.box, strict=True)
    )


def _runs(message: Sequence[Cut], dtypes: Sequence[torch.dtype]) -> Iterable[DtypeRun]:
    start = first = 0
    for dtype, group in groupby(range(len(message)), key=lambda at: dtypes[at]):
        sizes = [_elements(message[at]) for at in group]
        stop = start + sum(sizes) * dtype.itemsize
        yield DtypeRun(dtype, start, stop, first, first + len(sizes), sizes)
        start, first = stop, first + len(sizes)


def _elements(cut: Cut) -> int:
    return math.prod(stop - start for start, stop in cut.box)
