"""Pending reductions from mesh to mesh, over processes: contributions to sums, sums to later sums, gifts.

Who adds what in which order follows from the step alone, so replicas have the same bits, and the same call gives the same
bits every time. Sums of short floats travel as f32 until all of a sum is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, final

import torch

from ....planning import ReduceAcross
from ....planning.across.cells import Place
from ....planning.across.work import Gift, Sum
from ....sharding.geometry import Box, box_shape
from ...holding import Pieces, holding
from ...machine import residence
from ...memory.host_pool import pooled_empty
from ...reduction import Totals
from .. import world
from ..group import group_if_shared
from ..mesh_processes import processes_of, wire_device
from ..transport.exchange import exchange, is_compared
from ..transport.messages import MessageList, StoredBox, part, whole_part
from .new_pieces import NewPieces
from .occupancy import most_slots, occupancy, stored_part

__all__ = ["AcrossStage"]

T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class _Adding:
    """A sum of this process: its contributions, each a part of what is stored here or None where it arrives."""

    shape: tuple[int, ...]
    device: torch.device
    parts: list[StoredBox | None]
    lower: int | None
    """The number of an earlier sum of this process that is added, or -1 for one that arrives."""


@final
@dataclass(frozen=True, slots=True)
class _Getting:
    """A box of a new piece, and what is given: a part of a sum or of a piece, or None where it arrives."""

    into: StoredBox
    given: StoredBox | None


@final
class AcrossStage:
    """What this process does in a step that takes pending reductions to another mesh."""

    def __init__(self, step: ReduceAcross) -> None:
        self.processes = processes_of(step)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        self._work, self._op, self._divisor, self._scale = step.work, step.op, step.divisor, step.scale
        self._targets = NewPieces(step.target, step.shape, step.neutral)
        most = max(most_slots(step.source.mesh), most_slots(step.target.mesh))
        self._limit = math.prod(step.shape) * max(step.itemsize, torch.float32.itemsize) * most
        self.is_compared = is_compared(self.processes, self._limit, self._wire)
        rounds = _Rounds(step)
        self._sums, self._gets = rounds.sums, rounds.gets
        self._collect = rounds.collecting.among(self.processes)
        self._hand_on = rounds.handing_on.among(self.processes)
        self._give = rounds.giving.among(self.processes)

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        totals = Totals(self._op, self._divisor, self._scale, dtype)
        sums = self._added(pieces, totals)
        width = totals.width if self._work.adds else dtype
        if self._work.adds:
            given = [*sums, *(piece.to(width) for piece in pieces)]
        else:
            given = [totals.finished(each) for each in (*sums, *pieces)]
        targets = self._targets.new(width)
        group = group_if_shared(self.processes)
        if not self._work.adds:
            exchange(self._give, given, targets, dtype, group, self._wire, self._limit)
            return targets
        arrived = [self._room(get.into.shape, width) for get in self._gets if get.given is None]
        exchange(self._give, given, arrived, width, group, self._wire, self._limit)
        waiting = iter(arrived)
        for get in self._gets:
            into = targets[get.into.piece][get.into.where]
            part = next(waiting) if get.given is None else given[get.given.piece][get.given.where]
            into.copy_(totals.added([into, part.to(into.device)]))
        return tuple(target.to(dtype) for target in targets)

    def _added(self, pieces: Pieces, totals: Totals) -> list[torch.Tensor]:
        """The sums of this process, all of them there."""
        if not self._work.sums:
            return []
        group = group_if_shared(self.processes)
        lent = [self._room(each.shape, totals.dtype) for each in self._sums for own in each.parts if own is None]
        exchange(self._collect, pieces, lent, totals.dtype, group, self._wire, self._limit)
        waiting = iter(lent)
        sums = []
        for each in self._sums:
            parts = [next(waiting) if own is None else pieces[own.piece][own.where] for own in each.parts]
            sums.append(totals.added([part.to(each.device) for part in parts]))
        if not self._work.chains:
            return sums
        lent = [self._room(each.shape, totals.width) for each in self._sums if each.lower == -1]
        exchange(self._hand_on, sums, lent, totals.width, group, self._wire, self._limit)
        waiting = iter(lent)
        for number, each in enumerate(self._sums):
            if each.lower is not None:
                lower = next(waiting) if each.lower == -1 else sums[each.lower]
                sums[number] = totals.added([sums[number], lower.to(each.device)])
        return sums

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return pooled_empty(shape, dtype, self._wire)


@final
class _Rounds:
    """The three rounds of a step, seen from this process."""

    def __init__(self, step: ReduceAcross) -> None:
        self._step, self._work = step, step.work
        self._here = world.current().process
        before, after = residence(step.source.mesh), residence(step.target.mesh)
        self._senders, self._receivers = before.owners, after.owners
        self._own = before.owned
        places = self._work.places
        self._process = {**_at(places.of_target, after.owners), **_at(places.of_source, before.owners)}
        self._device = {**_at(places.of_target, after.torch_devices), **_at(places.of_source, before.torch_devices)}
        self.collecting, self.handing_on, self.giving = MessageList(), MessageList(), MessageList()
        self.sums: list[_Adding] = []
        self.gets: list[_Getting] = []
        self._number: dict[int, int] = {}
        """Which of this process's sums each is."""
        for number, each in enumerate(self._work.sums):
            self._sum(number, each)
        for number, gift in enumerate(self._work.gifts):
            self._gift(number, gift)

    def _sum(self, number: int, each: Sum) -> None:
        by = self._process[each.place]
        parts: list[StoredBox | None] = []
        for slot in each.slots if by == self._here else [slot for slot in self._own if slot in each.slots]:
            near = occupancy(self._step.source, by).same_shard(slot)
            if by == self._here:
                parts.append(None if near is None else self._stored(near, each.box))
                if near is None:
                    self.collecting.arrive_apart(self._senders[slot], (number, slot), each.box)
            elif near is None and self._senders[slot] == self._here:
                self.collecting.leave(by, (number, slot), self._stored(slot, each.box))
        lower = each.lower
        if lower is not None:
            origin = self._process[self._work.sums[lower].place]
            if origin == self._here != by:
                self.handing_on.leave(by, number, whole_part(self._number[lower], each.box))
            elif by == self._here != origin:
                self.handing_on.arrive_apart(origin, number, each.box)
                lower = -1
            elif by == self._here:
                lower = self._number[lower]
        if by == self._here:
            self._number[number] = len(self.sums)
            self.sums.append(_Adding(box_shape(each.box), self._device[each.place], parts, lower))

    def _gift(self, number: int, gift: Gift) -> None:
        to = self._receivers[gift.to]
        if not occupancy(self._step.target, to).is_first(gift.to):
            return
        if gift.sum is None:
            near = occupancy(self._step.source, to).same_shard(gift.origin)
            origin = to if near is not None else self._senders[gift.origin]
        else:
            near, origin = None, self._process[self._work.sums[gift.sum].place]
        given = self._given(gift, gift.origin if near is None else near) if origin == self._here else None
        if to != self._here:
            if given is not None:
                self.giving.leave(to, number, given)
            return
        into = stored_part(self._step.target, self._step.shape, gift.to, gift.box)
        self.gets.append(_Getting(into, given))
        if self._work.adds:
            if given is None:
                self.giving.arrive_apart(origin, number, gift.box)
        elif given is None:
            self.giving.arrive(origin, number, into)
        else:
            self.giving.copy(given, into)

    def _given(self, gift: Gift, slot: int) -> StoredBox:
        """A part of what `given` lists: the sums of this process, then what it stores."""
        if gift.sum is not None:
            return whole_part(self._number[gift.sum], gift.box)
        stored = holding(self._step.source)
        kept = self._stored(slot, gift.box)
        inner = tuple((each.start, each.stop) for each in kept.where)
        return part(len(self.sums) + kept.piece, inner, stored.piece_shape(kept.piece, self._step.shape))

    def _stored(self, slot: int, box: Box) -> StoredBox:
        return stored_part(self._step.source, self._step.shape, slot, box)


def _at(places: Sequence[Place], of: Sequence[T]) -> dict[Place, T]:
    return dict(zip(places, of, strict=True))
