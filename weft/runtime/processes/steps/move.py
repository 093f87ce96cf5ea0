"""Steps that move boxes and reduce nothing, over processes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch

from ....planning import Exchange, LocalSlice, Step
from ....planning.moving_steps import Moves
from ...holding import Pieces, holding
from ...machine import residence
from ...memory.lazy_copy import lazy_clone
from .. import world
from ..current_call import CollectiveCall
from ..group import Processes, group_if_shared, group_of
from ..mesh_processes import processes_of, wire_device
from ..transport.async_ops import Arriving
from ..transport.exchange import exchange, is_compared
from ..transport.mailing import Mailed
from ..transport.messages import MessageList, Messages, StoredBox
from .new_pieces import NewPieces
from .occupancy import most_slots, occupancy, order_of, slots_of, stored_part

__all__ = ["MoveStage"]


@final
class MoveStage:
    """What this process does in a step that moves boxes."""

    def __init__(self, step: Moves | Exchange, *, is_last: bool) -> None:
        begins = step if isinstance(step, Exchange) else None
        self.processes = processes_of(step)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        self._messages = _messages_of(step, self.processes)
        self._targets = NewPieces(step.target, step.shape, None if begins is None else begins.neutral)
        self._scale = 1 if begins is None else begins.scale
        # A process may have the same box in several memories, and contributions to it.
        self._limit = math.prod(step.shape) * step.itemsize * most_slots(step.target.mesh)
        self.is_compared = is_compared(self.processes, self._limit, self._wire)
        self._views = None
        if isinstance(step, LocalSlice) and not is_last:
            self._views = _views(self._messages, holding(step.target).count)
        self._kept = _kept(step, self._messages) if self._scale == 1 else None
        if self._kept is not None:
            self._messages = replace(self._messages, copies=())

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        if self._views is not None:
            return tuple(pieces[part.piece][part.where] for part in self._views)
        group = group_if_shared(self.processes)
        if self._kept is not None:
            exchange(self._messages, pieces, (), dtype, group, self._wire, self._limit)
            return tuple(lazy_clone(pieces[origin]) for origin in self._kept)
        targets = self._targets.new(dtype)
        exchange(self._messages, pieces, targets, dtype, group, self._wire, self._limit)
        if self._scale != 1:
            for target in targets:
                target.mul_(self._scale)
        return targets

    def mail(self, pieces: Pieces, dtype: torch.dtype, call: CollectiveCall, purpose: str, tag: int) -> Arriving:
        """Begins the step by messages that wait for no others; what arrives is there when it is waited for.

        Processes may come to it in any order: a message is known by the purpose of its group and by its tag.
        """
        targets = self._targets.new(dtype) if self._kept is None else ()
        mailed = Mailed(
            self._messages, pieces, targets, dtype, group_of(self.processes, purpose), self._wire, call, tag
        )
        if self._kept is None:
            return mailed
        return mailed.giving(tuple(lazy_clone(pieces[origin]) for origin in self._kept))


def _views(messages: Messages, count: int) -> list[StoredBox] | None:
    """For each new piece the part of a stored one that it is, if each is one part."""
    found = {target.piece: source for source, target in messages.copies}
    return [found[piece] for piece in range(count)] if len(found) == len(messages.copies) == count else None


def _kept(step: Step, messages: Messages) -> list[int] | None:
    """For each new piece the stored one that it is, if nothing arrives and each is whole already."""
    here, there = holding(step.source), holding(step.target)
    if messages.receives or not messages.copies:
        return None
    found = {target.piece: source.piece for source, target in messages.copies}
    if len(found) != len(messages.copies) or len(found) != there.count:
        return None
    same = all(
        here.piece_shape(source, step.shape) == there.piece_shape(target, step.shape)
        and here.devices[source] == there.devices[target]
        for target, source in found.items()
    )
    return [found[piece] for piece in range(there.count)] if same else None


def _messages_of(step: Moves | Exchange, processes: Processes) -> Messages:
    """Who copies, sends and receives what. A box that a process holds anywhere does not travel to it."""
    source, target, shape = step.source, step.target, step.shape
    here = world.current().process
    owners, receivers = residence(source.mesh).owners, residence(target.mesh).owners
    held = occupancy(source, here)
    found = MessageList()
    for slot in occupancy(target, here).slots:
        for transfer in step.receives(slot):
            near = held.same_shard(transfer.source_slot)
            into = stored_part(target, shape, slot, transfer.box)
            if not into.size:
                continue
            if near is not None:
                found.copy(stored_part(source, shape, near, transfer.box), into)
            else:
                found.arrive(owners[transfer.source_slot], order_of(transfer), into)
    for slot in slots_of(source.mesh).get(here, ()):
        for transfer in step.sends(slot):
            to = receivers[transfer.target_slot]
            if to == here or not occupancy(target, to).is_first(transfer.target_slot):
                continue
            given = stored_part(source, shape, slot, transfer.box)
            if given.size and occupancy(source, to).same_shard(slot) is None:
                found.leave(to, order_of(transfer), given)
    return found.among(processes)
