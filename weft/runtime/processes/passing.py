"""Carrying out the plan of a state: regions of many tensors become regions of others, here and in other processes.

What goes from one process to another is packed into messages of a bounded size, and sent message after message; while one
is on its way, the one before is unpacked and the next is packed. Both ends know which parts a message has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch

from ...planning.states import StatePlan
from ..holding import Pieces
from ..host_pool import pooled_empty
from .communicating import communicating
from .current_call import CollectiveCall
from .group import Group, group_of
from .mesh_processes import is_elsewhere, owners_of, wire_device
from .parcels import KeptPart, Parcel, Parcels, parcels
from .transport.exchange import swap

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
    named = list(plan.passages)
    meshes = {end.layout.mesh for lot in lots for end in (named[lot.number][1].source, named[lot.number][1].target)}
    if not lots or is_elsewhere(*meshes):
        return Checked()
    processes = owners_of(*meshes)
    work = parcels(plan, tuple(lot.number for lot in lots), tuple(lot.dtype for lot in lots), processes)
    if len(processes) == 1:
        _copy(lots, work.copies, count)
        return Checked()
    with communicating(call, processes):
        return _Passing(lots, work, group_of(processes), wire_device(*meshes), count, checksum).run()


def _copy(lots: Sequence[Lot], copies: Sequence[KeptPart], count: Callable[[int], object]) -> None:
    """Brings what stays in this process to its place."""
    for each in copies:
        lot = lots[each.lot]
        lot.target[each.into.piece][each.into.where].copy_(lot.source[each.given.piece][each.given.where])
        count(each.into.size * lot.dtype.itemsize)


@final
class _Passing:
    """Messages in rounds: in each, at most one from any process to any other."""

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
        self._checked = Checked()

    def run(self) -> Checked:
        """Sends and receives all messages, and copies what stays here."""
        rounds = max(_said_by_each(self._group, self._work.rounds, self._wire))
        outgoing, arrived = self._packed(0), dict[int, torch.Tensor]()
        for number in range(rounds):
            incoming, following = self._places(number), dict[int, torch.Tensor]()
            meanwhile = partial(self._meanwhile, number, arrived, following)
            swap(self._group, outgoing, incoming, self._wire, meanwhile=meanwhile)
            outgoing, arrived = following, incoming
        if not rounds:
            _copy(self._lots, self._work.copies, self._count)
        self._unpack(rounds - 1, arrived)
        if self._checksum is not None:
            damages = _said_by_each(self._group, len(self._checked.damages), self._wire)
            self._checked.others = sum(damages) > len(self._checked.damages)
        return self._checked

    def _meanwhile(self, number: int, arrived: dict[int, torch.Tensor], following: dict[int, torch.Tensor]) -> None:
        """While the messages of a round are on their way: brings those before to their place, and packs the next."""
        self._unpack(number - 1, arrived)
        following.update(self._packed(number + 1))
        if number == 0:
            _copy(self._lots, self._work.copies, self._count)

    def _packed(self, number: int) -> dict[int, torch.Tensor]:
        """The messages of a round, by the index of the process that they go to."""
        return {index: self._message(each[number]) for index, each in self._work.leaving if number < len(each)}

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
        view = views[0]
        return (
            self._checksum is None
            and len(views) == 1
            and view.dtype is parcel.runs[0].dtype
            and view.device.type == self._wire.type
            and view.is_contiguous()
            and not view.is_conj()
            and not view.is_neg()
        )

    def _room(self, parcel: Parcel) -> torch.Tensor:
        size = parcel.nbytes + (_CHECKSUM if self._checksum else 0)
        return pooled_empty((size,), torch.uint8, self._wire)

    def _places(self, number: int) -> dict[int, torch.Tensor]:
        """Where the messages of a round arrive: in their place, or in memory for the time being."""
        found: dict[int, torch.Tensor] = {}
        for index, each in self._work.arriving:
            if number < len(each):
                views = each[number].views(self._targets)
                is_in_place = self._is_in_place(each[number], views)
                found[index] = views[0].view(-1) if is_in_place else self._room(each[number])
        return found

    def _unpack(self, number: int, arrived: dict[int, torch.Tensor]) -> None:
        """Brings what has arrived in a round to its place."""
        for index, each in self._work.arriving:
            if index not in arrived:
                continue
            parcel, message = each[number], arrived[index]
            views = parcel.views(self._targets)
            self._count(parcel.nbytes)
            if self._is_in_place(parcel, views):
                continue
            if self._checksum is not None:
                self._check(index, parcel, message)
            for run in parcel.runs:
                parts = message[run.start : run.stop].view(run.dtype).split(run.sizes)
                taken = views[run.first : run.last]
                torch._foreach_copy_(taken, [part.view(view.shape) for part, view in zip(parts, taken, strict=True)])

    def _check(self, index: int, parcel: Parcel, message: torch.Tensor) -> None:
        assert self._checksum is not None
        sent = _as_bytes(self._checksum(message[: parcel.nbytes].cpu()))
        if not torch.equal(sent, message[parcel.nbytes :].cpu()):
            self._checked.damages.append(Damage(self._group.processes[index], parcel.names))


def _as_bytes(number: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(number.to_bytes(_CHECKSUM, "little")), dtype=torch.uint8)


def _said_by_each(group: Group, number: int, wire: torch.device) -> list[int]:
    """The number that each process of a group says."""
    mine = torch.tensor([number], device=wire)
    said = {index: torch.empty_like(mine) for index in range(group.size) if index != group.index}
    swap(group, dict.fromkeys(said, mine), said, wire, limit=mine.nbytes)
    return [number, *(int(each) for each in said.values())]
