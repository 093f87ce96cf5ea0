"""Steps that move boxes through cells: into each host once, then from process to process inside it."""

from __future__ import annotations

from collections.abc import Callable
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
from ..transport.messages import Messages, Pair, StoredBox, messages_of
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
        parts = _TransferMessages(step.shape)
        self._enter = parts.messages(
            self.processes, (step.source, lambda s: routes.sends(0, s)), (step.target, lambda s: routes.receives(0, s))
        )
        self._pass_on = parts.messages(
            self._inside, (step.target, lambda s: routes.sends(1, s)), (step.target, lambda s: routes.receives(1, s))
        )

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


@final
class _TransferMessages:
    """Transfers between slots as messages between processes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape

    def messages(self, processes: Processes, giving: _Side, taking: _Side) -> Messages:
        """What this process copies, sends and receives."""
        here = world.current().process
        (source, sends), (target, receives) = giving, taking
        givers, takers = residence(source.mesh).owners, residence(target.mesh).owners
        copies: list[tuple[StoredBox, StoredBox]] = []
        leaving: dict[int, list[Pair]] = {}
        arriving: dict[int, list[Pair]] = {}
        for slot in slots_of(target.mesh).get(here, ()):
            for each in receives(slot):
                into = stored_part(target, self._shape, slot, each.box)
                by = givers[each.source_slot]
                if not into.size:
                    continue
                if by == here:
                    copies.append((stored_part(source, self._shape, each.source_slot, each.box), into))
                else:
                    arriving.setdefault(by, []).append((each.box, into))
        for slot in slots_of(source.mesh).get(here, ()):
            for each in sends(slot):
                given = stored_part(source, self._shape, slot, each.box)
                to = takers[each.target_slot]
                if given.size and to != here:
                    leaving.setdefault(to, []).append((each.box, given))
        return messages_of(copies, leaving, arriving, processes)
