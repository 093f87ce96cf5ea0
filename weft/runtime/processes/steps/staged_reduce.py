"""Steps that reduce through cells: inside each host, from host to host, and back the same way where results are spread.

Which contributions are added first follows from the slots alone, so replicas have the same bits, and the same call gives the
same bits every time. Sums of short floats travel as f32 until all of a sum is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from ....planning.boxes.transfers import Transfer
from ....planning.owners import Reducing, owners_of_step
from ....planning.staging.delegation import CellTask, Delegation, delegation
from ....sharding.geometry import Box, box_shape, within
from ....sharding.mesh import Slot
from ...holding import Pieces, holding
from ...machine import residence
from ...memory.host_pool import pooled_empty
from ...reduction import is_wide, reduce_into, reduced, summed
from .. import world
from ..group import Processes, group_if_shared
from ..mesh_processes import owners_of, wire_device
from ..transport.exchange import exchange
from ..transport.messages import MessageList, Messages, StoredBox, part, whole_part
from .new_pieces import NewPieces
from .occupancy import slots_of
from .staged_move import beside

__all__ = ["StagedReduce"]


@final
class StagedReduce:
    """What this process does in a step that reduces through cells. It owns one slot of the mesh."""

    is_compared = False

    def __init__(self, step: Reducing) -> None:
        assert step.stages is not None
        mesh = step.source.mesh
        owners = owners_of_step(step, crowded=False)
        self.processes = owners_of(mesh)
        self._inside = beside(step)
        self._wire = wire_device(mesh)
        self._op, self._divisor = step.op, step.divisor
        self._flat = owners.flat
        self._targets = NewPieces(step.target, step.shape)
        (slot,) = slots_of(mesh)[world.current().process]
        self._device = residence(mesh).torch_devices[slot]
        hops = _Hops(step, slot, delegation(owners, step.stages))
        self._tasks, self._own = hops.tasks, hops.own
        self._entrust = hops.entrust(self._inside)
        self._hand_in = hops.hand_in(self.processes)
        self._spread = (hops.spread(0, self.processes), hops.spread(1, self._inside)) if owners.spreads else None

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        within_, between = group_if_shared(self._inside), group_if_shared(self.processes)
        sources = [piece.reshape(-1) if self._flat else piece for piece in pieces]
        width = torch.float32 if is_wide(self._op, dtype) else dtype
        lent = [self._new(shape, dtype) for task in self._tasks for shape in task.shapes]
        exchange(self._entrust, sources, lent, dtype, within_, self._wire)
        partial = self._partial(sources, lent, width)
        arrived = [self._new(shape, width) for box in self._own for shape in box.shapes]
        exchange(self._hand_in, partial, arrived, width, between, self._wire)
        results = self._results(partial, arrived, dtype)
        if self._spread is None:
            return self._kept(results, dtype)
        targets = self._targets.new(dtype)
        outputs = [target.view(-1) for target in targets] if self._flat else list(targets)
        enter, pass_on = self._spread
        exchange(enter, results, outputs, dtype, between, self._wire)
        exchange(pass_on, outputs, outputs, dtype, within_, self._wire)
        return targets

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return pooled_empty(shape, dtype, self._device)

    def _partial(
        self, sources: Sequence[torch.Tensor], lent: Sequence[torch.Tensor], width: torch.dtype
    ) -> list[torch.Tensor]:
        """The reduction of each task, in the order of its members."""
        op = summed(self._op, width)
        waiting = iter(lent)
        found = []
        for task in self._tasks:
            parts = [next(waiting) if own is None else sources[own.piece][own.where] for own in task.parts]
            wide = [each.to(width) for each in parts]
            found.append(wide[0] if len(wide) == 1 else reduce_into(self._new(task.shape, width), op, wide))
        return found

    def _results(
        self, partial: Sequence[torch.Tensor], arrived: Sequence[torch.Tensor], dtype: torch.dtype
    ) -> list[torch.Tensor]:
        """The reduction of each box that this process owns, in the order of the cells."""
        op = summed(self._op, dtype)
        waiting = iter(arrived)
        found = []
        for box in self._own:
            total = reduced(op, [next(waiting) if own is None else partial[own] for own in box.parts])
            if op is not self._op:
                total.div_(self._divisor)
            found.append(self._new(box.shape, dtype).copy_(total))
        return found

    def _kept(self, results: Sequence[torch.Tensor], dtype: torch.dtype) -> Pieces:
        """What each owner has reduced is its new shard; one without elements has nothing to reduce."""
        return tuple(results) or self._targets.new(dtype)


@final
class _OwnBox:
    """A box that this process reduces: for each member the part that is its own, or None where it arrives."""

    def __init__(self, task: CellTask, parts: Sequence[StoredBox | None]) -> None:
        self.shape, self.parts = box_shape(task.box), parts

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of what arrives."""
        return [self.shape for own in self.parts if own is None]


@final
class _Owned:
    """A box that this process owns: for each cell the number of its own task, or None where a delegate sends it."""

    def __init__(self, shape: tuple[int, ...], parts: Sequence[int | None]) -> None:
        self.shape, self.parts = shape, parts

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of what arrives."""
        return [self.shape for own in self.parts if own is None]


@final
class _Hops:
    """The messages of each hop, seen from one slot."""

    def __init__(self, step: Reducing, slot: Slot, work: Delegation) -> None:
        self._step, self._slot, self._work = step, slot, work
        self._process = residence(step.source.mesh).owners
        self._said = work.tasks(slot)
        self._number = {(task.owner, task.box): number for number, task in enumerate(self._said)}
        self._arriving = work.arriving(slot)
        self.tasks = [
            _OwnBox(task, [self._part(task.box) if member == slot else None for member in task.members])
            for task in self._said
        ]
        self.own = [
            _Owned(box_shape(where), [self._number[slot, where] if by == slot else None for by in delegates])
            for where, delegates in self._arriving
        ]

    def entrust(self, processes: Processes) -> Messages:
        """Contributions to delegates in the cell."""
        found = MessageList()
        for owner, each in self._work.entrusts(self._slot):
            found.leave(self._process[each.target_slot], (owner, each.box), self._part(each.box))
        for task in self._said:
            for member in task.members:
                if member != self._slot:
                    found.arrive_apart(self._process[member], (task.owner, task.box), task.box)
        return found.among(processes)

    def hand_in(self, processes: Processes) -> Messages:
        """What delegates have reduced, to the owners."""
        found = MessageList()
        for number, task in enumerate(self._said):
            if task.owner != self._slot:
                found.leave(self._process[task.owner], task.box, whole_part(number, task.box))
        for where, delegates in self._arriving:
            for by in delegates:
                if by != self._slot:
                    found.arrive_apart(self._process[by], where, where)
        return found.among(processes)

    def spread(self, hop: int, processes: Processes) -> Messages:
        """Results into each cell, then among those in it."""
        found = MessageList()
        for each in self._work.takes(hop, self._slot):
            into = self._part(each.box, new=True)
            if each.source_slot == self._slot:
                found.copy(self._given(each, hop), into)
            else:
                found.arrive(self._process[each.source_slot], each.box, into)
        for each in self._work.gives(hop, self._slot):
            if each.target_slot != self._slot:
                found.leave(self._process[each.target_slot], each.box, self._given(each, hop))
        return found.among(processes)

    def _given(self, transfer: Transfer, hop: int) -> StoredBox:
        """A part of a result in the first hop, of the new shard in the second."""
        if hop:
            return self._part(transfer.box, new=True)
        for number, (where, _) in enumerate(self._arriving):
            if _lies_in(transfer.box, where):
                return part(number, within(transfer.box, where), box_shape(where))
        raise AssertionError(f"slot {self._slot} gives {transfer.box}, which it does not own")

    def _part(self, where: Box, *, new: bool = False) -> StoredBox:
        """A box of the old shard, or of the new one, in the memory of this process."""
        layout = self._step.target if new else self._step.source
        stored = holding(layout)
        piece = stored.piece_of[self._slot]
        shape = stored.piece_shape(piece, self._step.shape)
        if self._work.owners.flat:
            return part(piece, where, (math.prod(shape),))
        return part(piece, within(where, stored.box(piece, self._step.shape)), shape)


def _lies_in(inner: Box, outer: Box) -> bool:
    return all(low <= start and stop <= high for (start, stop), (low, high) in zip(inner, outer, strict=True))
