"""Carrying out the plan of a state: regions of many tensors become regions of others, here and in other processes.

What goes from one process to another is put into buckets of a bounded size, which go one after another; while one is on its
way, the one before is unpacked and the next is packed. Both ends know which parts a message has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from ...planning.states import StatePlan
from ..holding import Pieces
from ..host_pool import pooled_empty
from .communicating import communicating
from .current_call import CollectiveCall
from .group import Group, group_of
from .mesh_processes import is_elsewhere, owners_of, wire_device
from .neighbours import neighbours_of
from .parcels import Bucket, KeptPart, Parcel, Parcels, meshes_of, parcels
from .transport.exchange import Posted, post, swap
from .transport.reading import read_memory

__all__ = ["Checked", "Damage", "Lot", "pass_on"]

_CHECKSUM = 8
"""Bytes at the end of a message that is checked."""
Checksum = Callable[[torch.Tensor], int]
"""What says of the bytes of a tensor in host memory which they are, as a number of 8 bytes."""


@final
@dataclass(frozen=True, slots=True)
class Lot:
    """One of a plan's passages, the tensors that it leads between as this process stores them, and the dtype that travels."""

    number: int
    source: Pieces
    target: Pieces
    dtype: torch.dtype


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A message that did not arrive as it was sent: from which process, and which tensors it has."""

    process: int
    names: tuple[str, ...]


@final
@dataclass(slots=True)
class Checked:
    """What became of the messages that were checked."""

    damages: list[Damage] = field(default_factory=list)
    others: bool = False
    """Whether another process has received a damaged message."""


def pass_on(
    plan: StatePlan,
    lots: Sequence[Lot],
    call: CollectiveCall,
    count: Callable[[int], object],
    checksum: Checksum | None = None,
) -> Checked:
    """Fills the targets of some of a plan's passages; `count` is told of bytes that are in their place.

    Every process that has a device of any of the meshes makes this call with the same lots.
    """
    numbers, dtypes = tuple([lot.number for lot in lots]), tuple([lot.dtype for lot in lots])
    meshes = meshes_of(plan, numbers)
    if not lots or is_elsewhere(*meshes):
        return Checked()
    processes = owners_of(*meshes)
    wire = wire_device(*meshes)
    are_packed = len(processes) > 1 and group_of(processes).is_streamed(wire.type)
    work = parcels(plan, numbers, dtypes, processes, are_packed=are_packed)
    if len(processes) == 1:
        _copy(lots, work.copies, count)
        return Checked()
    with communicating(call, processes):
        return _Passing(lots, work, group_of(processes), wire, count, checksum).run()


def _copy(lots: Sequence[Lot], copies: Sequence[KeptPart], count: Callable[[int], object]) -> None:
    """Brings what stays in this process to its place."""
    for each in copies:
        lot = lots[each.lot]
        lot.target[each.into.piece][each.into.where].copy_(lot.source[each.given.piece][each.given.where])
        count(each.into.size * lot.dtype.itemsize)


@final
@dataclass(frozen=True, slots=True)
class _UnderWay:
    """The messages of a round, where they arrive, and what is lent to neighbours until they have read it."""

    posted: Posted
    incoming: dict[int, list[torch.Tensor]]
    lent: list[list[torch.Tensor]]
    thanks: Posted


@final
class _Passing:
    """Messages in rounds: in each, a bucket at most from any process to any other. Two rounds are on their way at once.

    Neighbours send no elements, but the addresses where they lie, and behind them whether to say thanks when these were read:
    for what is packed, whose memory is used again, and for the last of all.
    """

    def __init__(
        self,
        lots: Sequence[Lot],
        work: Parcels,
        group: Group,
        wire: torch.device,
        count: Callable[[int], object],
        checksum: Checksum | None,
    ) -> None:
        self._work, self._group, self._wire, self._count, self._checksum = work, group, wire, count, checksum
        self._lots = lots
        self._sources = [lot.source for lot in lots]
        self._targets = [lot.target for lot in lots]
        self._near = neighbours_of(group, wire)
        self._number, self._thanks = group.next_number(), group.next_number()
        self._checked = Checked()

    def run(self) -> Checked:
        """Sends and receives all messages, and copies what stays here."""
        rounds = self._work.rounds
        if self._group.is_streamed(self._wire.type):  # each round is a call of all processes
            rounds = max(_said_by_each(self._group, rounds, self._wire))
        under_way = self._posted(0)
        thanked: list[Posted] = []
        _copy(self._lots, self._work.copies, self._count)
        for number in range(rounds):
            following = self._posted(number + 1) if number + 1 < rounds else None
            under_way.posted.finish()
            thanked.append(self._taken(number, under_way.incoming))
            under_way.thanks.finish()
            under_way = following or under_way
        for each in thanked:
            each.finish()
        if self._checksum is not None:
            damages = _said_by_each(self._group, len(self._checked.damages), self._wire)
            self._checked.others = sum(damages) > len(self._checked.damages)
        return self._checked

    def _posted(self, number: int) -> _UnderWay:
        """Packs the messages of a round, or lends them, and begins to send and receive."""
        leaving = {index: each[number] for index, each in self._work.leaving if number < len(each)}
        last = {index for index, each in self._work.leaving if number == len(each) - 1}
        arriving = {index: each[number] for index, each in self._work.arriving if number < len(each)}
        lent: dict[int, list[torch.Tensor]] = {}
        sent: dict[tuple[int, bool], list[torch.Tensor]] = {}
        """By bucket, which several processes may get, and by whether they read it."""
        outgoing: dict[int, list[torch.Tensor]] = {}
        thanks: dict[int, list[torch.Tensor]] = {}
        for index, bucket in leaving.items():
            is_read, which = index in self._near.readers, id(bucket)
            if (which, is_read) not in sent:
                if is_read:
                    lie_ready = all(map(self._is_lent_in_place, bucket))
                    lent[which] = [part for parcel in bucket for part in self._given(parcel)]
                    addresses = [part.data_ptr() for part in lent[which]]
                    sent[which, is_read] = [torch.tensor([*addresses, not lie_ready or index in last])]
                else:
                    sent[which, is_read] = [self._message(parcel) for parcel in bucket]
            outgoing[index] = sent[which, is_read]
            if is_read and outgoing[index][0][-1]:
                thanks[index] = [torch.empty(1, dtype=torch.uint8)]
        incoming = {
            index: [self._addresses(bucket)] if index in self._near.readable else [*map(self._place, bucket)]
            for index, bucket in arriving.items()
        }
        posted = post(self._group, outgoing, incoming, self._wire, self._number)
        return _UnderWay(posted, incoming, list(lent.values()), post(self._group, {}, thanks, self._wire, self._thanks))

    def _given(self, parcel: Parcel) -> list[torch.Tensor]:
        """The parts of a message where a neighbour can read them: in their place, or packed if one of them needs it."""
        if self._is_lent_in_place(parcel):
            return parcel.views(self._sources)
        message = self._message(parcel)
        return [message] if self._checksum else list(_parts_of(parcel, message))

    def _is_lent_in_place(self, parcel: Parcel) -> bool:
        """Whether a neighbour can read all parts of a message where they lie."""
        return self._checksum is None and all(map(self._lies_ready, parcel.views(self._sources), parcel.dtypes))

    def _addresses(self, bucket: Bucket) -> torch.Tensor:
        """Room for the addresses of a bucket's parts, or, where they are checked, of its messages, and for what follows them."""
        count = len(bucket) if self._checksum else sum(len(parcel.places) for parcel in bucket)
        return torch.empty(count + 1, dtype=torch.int64)

    def _taken(self, number: int, arrived: dict[int, list[torch.Tensor]]) -> Posted:
        """Brings what has arrived in a round to its place, reads what neighbours lend, and thanks them."""
        thanks: dict[int, list[torch.Tensor]] = {}
        for index, each in self._work.arriving:
            if index not in arrived:
                continue
            if index in self._near.readable:
                *addresses, is_thanked = arrived[index][0].tolist()
                self._read(index, each[number], addresses)
                if is_thanked:
                    thanks[index] = [torch.ones(1, dtype=torch.uint8)]
                continue
            for parcel, message in zip(each[number], arrived[index], strict=True):
                views = parcel.views(self._targets)
                if not self._is_in_place(parcel, views):
                    self._unpack(index, parcel, message, views)
        for index, each in self._work.arriving:
            for parcel in each[number] if index in arrived else ():
                self._count(parcel.nbytes)
        return post(self._group, thanks, {}, self._wire, self._thanks)

    def _read(self, index: int, bucket: Bucket, addresses: Sequence[int]) -> None:
        """Reads a bucket from a neighbour's memory: straight to its place where it lies in one stretch there."""
        into: list[torch.Tensor] = []
        apart: list[tuple[Parcel, torch.Tensor, list[torch.Tensor]]] = []
        for parcel in bucket:
            views = parcel.views(self._targets)
            if self._checksum is None and all(map(self._lies_ready, views, parcel.dtypes)):
                into += views
                continue
            message = self._room(parcel)
            apart.append((parcel, message, views))
            into += [message] if self._checksum else _parts_of(parcel, message)
        ours = [(part.data_ptr(), part.nbytes) for part in into]
        theirs = [(address, size) for address, (_, size) in zip(addresses, ours, strict=True)]
        read_memory(self._near.readable[index], theirs, ours)
        for parcel, message, views in apart:
            self._unpack(index, parcel, message, views)

    def _message(self, parcel: Parcel) -> torch.Tensor:
        views = parcel.views(self._sources)
        if self._is_in_place(parcel, views):
            return views[0].view(-1)
        message = self._room(parcel)
        for run in parcel.runs:
            room = message[run.start : run.stop].view(run.dtype)
            given = views[run.first : run.last]
            if all(view.dtype is run.dtype and view.is_contiguous() and view.device == room.device for view in given):
                torch.cat([view.view(-1) for view in given], out=room)
                continue
            for part, view in zip(room.split(run.sizes), given, strict=True):
                part.view(view.shape).copy_(view)
        if self._checksum is not None:
            message[parcel.nbytes :] = _as_bytes(self._checksum(message[: parcel.nbytes].cpu()))
        return message

    def _is_in_place(self, parcel: Parcel, views: Sequence[torch.Tensor]) -> bool:
        """Whether a message can leave from the place of its one part, or arrive there."""
        return self._checksum is None and len(views) == 1 and self._lies_ready(views[0], parcel.runs[0].dtype)

    def _lies_ready(self, view: torch.Tensor, dtype: torch.dtype) -> bool:
        """Whether a part can leave from its place as it is, or arrive there."""
        if view.dtype is not dtype or not view.is_contiguous() or view.device.type != self._wire.type:
            return False
        return not view.is_conj() and not view.is_neg()

    def _room(self, parcel: Parcel) -> torch.Tensor:
        """Memory for a message for the time being: blocks of one size are found again, and still in the cache."""
        more = _CHECKSUM if self._checksum else 0
        return pooled_empty((self._work.largest + more,), torch.uint8, self._wire)[: parcel.nbytes + more]

    def _place(self, parcel: Parcel) -> torch.Tensor:
        """Where a message arrives: in the place of its one part, or in memory for the time being."""
        views = parcel.views(self._targets)
        return views[0].view(-1) if self._is_in_place(parcel, views) else self._room(parcel)

    def _unpack(self, index: int, parcel: Parcel, message: torch.Tensor, views: list[torch.Tensor]) -> None:
        """Brings what has arrived from a process to its place."""
        if self._checksum is not None:
            self._check(index, parcel, message)
        for run in parcel.runs:
            parts = message[run.start : run.stop].view(run.dtype).split(run.sizes)
            into = views[run.first : run.last]
            torch._foreach_copy_(into, [part.view(view.shape) for part, view in zip(parts, into, strict=True)])

    def _check(self, index: int, parcel: Parcel, message: torch.Tensor) -> None:
        assert self._checksum is not None
        sent = _as_bytes(self._checksum(message[: parcel.nbytes].cpu()))
        if not torch.equal(sent, message[parcel.nbytes :].cpu()):
            self._checked.damages.append(Damage(self._group.processes[index], parcel.names))


def _parts_of(parcel: Parcel, message: torch.Tensor) -> Iterator[torch.Tensor]:
    """The parts of a message that is packed."""
    for run in parcel.runs:
        yield from message[run.start : run.stop].view(run.dtype).split(run.sizes)


def _as_bytes(number: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(number.to_bytes(_CHECKSUM, "little")), dtype=torch.uint8)


def _said_by_each(group: Group, number: int, wire: torch.device) -> list[int]:
    """The number that each process of a group says."""
    mine = torch.tensor([number], device=wire)
    said = {index: torch.empty_like(mine) for index in range(group.size) if index != group.index}
    swap(group, dict.fromkeys(said, mine), said, wire, limit=mine.nbytes)
    return [number, *(int(each) for each in said.values())]
