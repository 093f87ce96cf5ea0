"""Carrying out the plan of a state: regions of many tensors become regions of others, here and in other processes.

What goes from one process to another is put into buckets of a bounded size, which go one after another; while one is on its
way, the one before is unpacked and the next is packed. Both ends know which parts a message has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, final

import torch

from ...planning.states import StatePlan
from ..holding import Pieces
from .communicating import communicating
from .current_call import CollectiveCall
from .group import Group, Processes, group_of
from .mesh_processes import is_elsewhere, owners_of, wire_device
from .neighbours import neighbours_of
from .packing import Checked, Checksum, Packing
from .parcels import Bucket, KeptPart, Parcel, Parcels, bucketed, meshes_of, parcels
from .transport.exchange import Posted, post, swap
from .transport.reading import NOBODY, Span, read_memory

__all__ = ["Lot", "pass_on", "passing_bytes"]


@final
@dataclass(frozen=True, slots=True)
class Lot:
    """One of a plan's passages, and the dtype that travels."""

    number: int
    dtype: torch.dtype


def pass_on(
    plan: StatePlan,
    lots: Sequence[Lot],
    sources: Sequence[Pieces],
    targets: Sequence[Pieces],
    call: CollectiveCall,
    count: Callable[[int], object],
    checksum: Checksum | None = None,
) -> Checked:
    """Fills the targets of some of a plan's passages; `count` is told of bytes that are in their place, here or elsewhere.

    `sources` and `targets` are the tensors that each lot leads between, as this process stores them.

    Every process that has a device of any of the meshes makes this call with the same lots.
    """
    found = _found(plan, lots)
    if found is None:
        return Checked()
    work, processes, wire = found
    if len(processes) == 1:
        _copy(work.copies, sources, targets, count)
        return Checked()
    packing = Packing(sources, targets, work.largest, wire, checksum)
    with communicating(call, processes):
        group = group_of(processes)
        _Passing(work, packing, group, wire, count).run()
        if checksum is not None:
            damages = _said_by_each(group, len(packing.checked.damages), wire)
            packing.checked.others = sum(damages) > len(packing.checked.damages)
    return packing.checked


def passing_bytes(plan: StatePlan, lots: Sequence[Lot]) -> int:
    """What `pass_on` will have counted in this process: what it keeps, what it receives, and what it gives."""
    found = _found(plan, lots)
    if found is None:
        return 0
    listed = (*found.work.leaving, *found.work.arriving)
    return sum(_bytes(buckets) for _, buckets in listed) + sum(each.nbytes for each in found.work.copies)


class _Found(NamedTuple):
    """What this process does for some lots, with whom, over what."""

    work: Parcels
    processes: Processes
    wire: torch.device


def _found(plan: StatePlan, lots: Sequence[Lot]) -> _Found | None:
    """What this process has to do; None: nothing."""
    numbers, dtypes = tuple([lot.number for lot in lots]), tuple([lot.dtype for lot in lots])
    meshes = meshes_of(plan, numbers)
    if not lots or is_elsewhere(*meshes):
        return None
    processes = owners_of(*meshes)
    wire = wire_device(*meshes)
    are_packed = len(processes) > 1 and group_of(processes).is_streamed(wire.type)
    return _Found(parcels(plan, numbers, dtypes, processes, are_packed=are_packed), processes, wire)


def _copy(
    copies: Sequence[KeptPart],
    sources: Sequence[Pieces],
    targets: Sequence[Pieces],
    count: Callable[[int], object],
) -> None:
    """Brings what stays in this process to its place."""
    for each in copies:
        given, into = each.given, each.into
        targets[each.lot][into.piece][into.where].copy_(sources[each.lot][given.piece][given.where])
        count(each.nbytes)


@final
@dataclass(frozen=True, slots=True)
class _PostedMessages:
    """Messages that were posted together, where they arrive, and what neighbours may read until they have said thanks."""

    posted: Posted
    incoming: dict[int, list[torch.Tensor]]
    lent: list[list[torch.Tensor]]
    thanks: Posted


@final
class _Passing:
    """Messages in rounds: in each, a bucket at most from any process to any other. Two rounds are on their way at once.

    Neighbours send no elements, but the addresses where they lie, and hear thanks when they were read. What a neighbour can
    read in its place is told at once, before all rounds; what has to be packed goes in rounds as well.
    """

    def __init__(
        self, work: Parcels, packing: Packing, group: Group, wire: torch.device, count: Callable[[int], object]
    ) -> None:
        self._work, self._packing, self._group, self._wire, self._count = work, packing, group, wire, count
        self._near = neighbours_of(group, wire)
        self._leaving, self._arriving = dict(work.leaving), dict(work.arriving)
        """What goes in rounds."""
        self._lent_bytes = 0
        self._number, self._thanks = group.next_number(), group.next_number()

    def run(self) -> None:
        """Sends and receives all messages, and copies what stays here."""
        lent = self._lent() if self._near is not NOBODY else None
        _copy(self._work.copies, self._packing.sources, self._packing.targets, self._count)
        thanked = [] if lent is None else [self._read_in_place(lent), lent.thanks]
        rounds = max(map(len, (*self._leaving.values(), *self._arriving.values())), default=0)
        if self._group.is_streamed(self._wire.type):  # each round is a call of all processes
            rounds = max(_said_by_each(self._group, rounds, self._wire))
        under_way = self._posted(0)
        for number in range(rounds):
            following = self._posted(number + 1) if number + 1 < rounds else None
            under_way.posted.finish()
            thanked.append(self._taken(number, under_way.incoming))
            under_way.thanks.finish()
            self._count(sum(parcel.nbytes for _, bucket in _in_round(self._leaving, number) for parcel in bucket))
            under_way = following or under_way
        for each in thanked:
            each.finish()
        self._count(self._lent_bytes)

    def _lent(self) -> _PostedMessages:
        """Tells neighbours where all parts lie that they can read in their place."""
        told: dict[int, tuple[torch.Tensor, tuple[Bucket, ...]]] = {}
        """By what several processes may get."""
        outgoing: dict[int, list[torch.Tensor]] = {}
        for index, buckets in self._work.leaving:
            if index in self._near.readers:
                if id(buckets) not in told:
                    told[id(buckets)] = self._addresses(buckets)
                addresses, self._leaving[index] = told[id(buckets)]
                self._lent_bytes += _bytes(buckets) - _bytes(self._leaving[index])
                outgoing[index] = [addresses]
        incoming = {
            index: [torch.empty(sum(len(parcel.places) for parcel in _all(buckets)), dtype=torch.int64)]
            for index, buckets in self._work.arriving
            if index in self._near.readable
        }
        return self._under_way(outgoing, incoming, [])

    def _addresses(self, buckets: Iterable[Bucket]) -> tuple[torch.Tensor, tuple[Bucket, ...]]:
        """Where all parts lie, 0 for those of messages that have to be packed; and these messages."""
        addresses: list[int] = []
        left: list[Parcel] = []
        for parcel in _all(buckets):
            views = parcel.views(self._packing.sources)
            if self._packing.lie_ready(parcel, views):
                addresses += [view.data_ptr() for view in views]
            else:
                addresses += [0] * len(views)
                left.append(parcel)
        return torch.tensor(addresses), bucketed(left, self._work.limit)

    def _read_in_place(self, lent: _PostedMessages) -> Posted:
        """Reads what neighbours lend in its place, a bucket at a time, and thanks them."""
        lent.posted.finish()
        for index, (told,) in lent.incoming.items():
            addresses = iter(told.tolist())
            left: list[Parcel] = []
            for bucket in self._arriving[index]:
                there = [(parcel, list(islice(addresses, len(parcel.places)))) for parcel in bucket]
                ready = [(parcel, at) for parcel, at in there if at[0]]
                if ready:
                    self._read(index, ready)
                left += [parcel for parcel, at in there if not at[0]]
            self._arriving[index] = bucketed(left, self._work.limit)
        return self._thank(lent.incoming)

    def _posted(self, number: int) -> _PostedMessages:
        """Packs the messages of a round, and begins to send and receive them; of those for neighbours, the addresses."""
        packed: dict[int, list[torch.Tensor]] = {}
        """By bucket, which several processes may get."""
        outgoing: dict[int, list[torch.Tensor]] = {}
        incoming: dict[int, list[torch.Tensor]] = {}
        for index, bucket in _in_round(self._leaving, number):
            if id(bucket) not in packed:
                packed[id(bucket)] = [self._packing.message(parcel) for parcel in bucket]
            outgoing[index] = packed[id(bucket)]
            if index in self._near.readers:
                outgoing[index] = [torch.tensor([message.data_ptr() for message in outgoing[index]])]
        for index, bucket in _in_round(self._arriving, number):
            if index in self._near.readable:
                incoming[index] = [torch.empty(len(bucket), dtype=torch.int64)]
            else:
                incoming[index] = [self._packing.place(parcel) for parcel in bucket]
        return self._under_way(outgoing, incoming, list(packed.values()))

    def _under_way(
        self,
        outgoing: dict[int, list[torch.Tensor]],
        incoming: dict[int, list[torch.Tensor]],
        lent: list[list[torch.Tensor]],
    ) -> _PostedMessages:
        posted = post(self._group, outgoing, incoming, self._wire, self._number)
        thanks = {index: [torch.empty(1, dtype=torch.uint8)] for index in outgoing if index in self._near.readers}
        return _PostedMessages(posted, incoming, lent, self._posted_thanks({}, thanks))

    def _taken(self, number: int, arrived: dict[int, list[torch.Tensor]]) -> Posted:
        """Brings what has arrived in a round to its place, reads what neighbours have packed, and thanks them."""
        for index, messages in arrived.items():
            bucket = self._arriving[index][number]
            if index in self._near.readable:
                self._read(index, [(parcel, [at]) for parcel, at in zip(bucket, messages[0].tolist(), strict=True)])
                continue
            for parcel, message in zip(bucket, messages, strict=True):
                self._packing.unpack(parcel, message, self._group.processes[index])
                self._count(parcel.nbytes)
        return self._thank(arrived)

    def _thank(self, arrived: Iterable[int]) -> Posted:
        thanks = {index: [torch.ones(1, dtype=torch.uint8)] for index in arrived if index in self._near.readable}
        return self._posted_thanks(thanks, {})

    def _posted_thanks(self, given: dict[int, list[torch.Tensor]], awaited: dict[int, list[torch.Tensor]]) -> Posted:
        """Only neighbours thank each other; where posting is a call of all processes, there are none."""
        if not given and not awaited:
            return Posted(self._group)
        return post(self._group, given, awaited, self._wire, self._thanks)

    def _read(self, index: int, listed: Sequence[tuple[Parcel, Sequence[int]]]) -> None:
        """Reads messages from a neighbour's memory: straight to their place where each part lies in one stretch there."""
        theirs: list[Span] = []
        ours: list[Span] = []
        apart: list[tuple[Parcel, torch.Tensor]] = []
        for parcel, addresses in listed:
            views = parcel.views(self._packing.targets)
            if self._packing.lie_ready(parcel, views):
                places = [view.data_ptr() for view in views]
            else:
                apart.append((parcel, self._packing.room(parcel)))
                places = [apart[-1][1].data_ptr()]
            theirs += self._packing.stretches(parcel, addresses)
            ours += self._packing.stretches(parcel, places)
        read_memory(self._near.readable[index], theirs, ours)
        for parcel, message in apart:
            self._packing.unpack(parcel, message, self._group.processes[index])
        for parcel, _ in listed:
            self._count(parcel.nbytes)


def _all(buckets: Iterable[Bucket]) -> Iterable[Parcel]:
    return (parcel for bucket in buckets for parcel in bucket)


def _bytes(buckets: Iterable[Bucket]) -> int:
    return sum(parcel.nbytes for parcel in _all(buckets))


def _in_round(listed: dict[int, tuple[Bucket, ...]], number: int) -> Iterable[tuple[int, Bucket]]:
    """The buckets that go in a round, by process."""
    return ((index, buckets[number]) for index, buckets in listed.items() if number < len(buckets))


def _said_by_each(group: Group, number: int, wire: torch.device) -> list[int]:
    """The number that each process of a group says."""
    mine = torch.tensor([number], device=wire)
    said = {index: torch.empty_like(mine) for index in range(group.size) if index != group.index}
    swap(group, dict.fromkeys(said, mine), said, wire, limit=mine.nbytes)
    return [number, *(int(each) for each in said.values())]
