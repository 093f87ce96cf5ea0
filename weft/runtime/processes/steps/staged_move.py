"""Steps that move boxes through cells: into each host once, then from process to process inside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch

from ....planning import Exchange, Step
from ....planning.boxes.transfers import Transfer
from ....planning.staging.multicast import multicast
from ....sharding.layout import Layout
from ....sharding.mesh import Slot
from ...holding import Pieces
from ...machine import residence
from .. import world
from ..group import Processes, group_if_shared
from ..mesh_processes import owners_of, wire_device
from ..transport.exchange import exchange
from ..transport.messages import MessageList, Messages
from .new_pieces import NewPieces
from .occupancy import slots_of, stored_part

__all__ = ["StagedMove", "beside"]


@final
class StagedMove:
    """What this process does in a step that moves boxes through cells. It owns one slot of each mesh at most."""

    is_compared = False

    def __init__(self, step: Step) -> None:
        assert step.stages is not None
        routes = multicast(step.source, step.target, step.shape, step.stages)
        self.processes = owners_of(step.source.mesh, step.target.mesh)
        self._inside = beside(step)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        begins = step if isinstance(step, Exchange) else None
        self._targets = NewPieces(step.target, step.shape, None if begins is None else begins.neutral)
        entering = (step.source, partial(routes.sends, 0)), (step.target, partial(routes.receives, 0))
        passing = (step.target, partial(routes.sends, 1)), (step.target, partial(routes.receives, 1))
        self._enter = _messages(step.shape, self.processes, *entering)
        self._pass_on = _messages(step.shape, self._inside, *passing)

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        targets = self._targets.new(dtype)
        exchange(self._enter, pieces, targets, dtype, group_if_shared(self.processes), self._wire)
        if self._inside:
            exchange(self._pass_on, targets, targets, dtype, group_if_shared(self._inside), self._wire)
        return targets


def beside(step: Step) -> Processes:
    """The processes in the cell of this one that hold something after a step; none if this one holds nothing then."""
    assert step.stages is not None
    mesh = step.target.mesh
    owned = slots_of(mesh).get(world.current().process, ())
    cells, owners = step.stages.cells(mesh), residence(mesh).owners
    mine = {cells[slot] for slot in owned}
    return tuple(sorted({owner for owner, cell in zip(owners, cells, strict=True) if cell in mine}))


_Side = tuple[Layout, Callable[[Slot], tuple[Transfer, ...]]]
"""A layout, and what a slot of its mesh sends or receives."""


def _messages(shape: tuple[int, ...], processes: Processes, giving: _Side, taking: _Side) -> Messages:
    """What this process copies, sends and receives in one hop."""
    here = world.current().process
    (source, sends), (target, receives) = giving, taking
    givers, takers = residence(source.mesh).owners, residence(target.mesh).owners
    found = MessageList()
    for slot in slots_of(target.mesh).get(here, ()):
        for each in receives(slot):
            into = stored_part(target, shape, slot, each.box)
            by = givers[each.source_slot]
            if not into.size:
                continue
            if by == here:
                found.copy(stored_part(source, shape, each.source_slot, each.box), into)
            else:
                found.arrive(by, each.box, into)
    for slot in slots_of(source.mesh).get(here, ()):
        for each in sends(slot):
            given = stored_part(source, shape, slot, each.box)
            to = takers[each.target_slot]
            if given.size and to != here:
                found.leave(to, each.box, given)
    return found.among(processes)
