"""`Delegation`: contributions are reduced inside their cell by a delegate, and owners receive one from each cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from ...caches import cached
from ...sharding.geometry import Box, has_elements
from ...sharding.mesh import Slot
from ..boxes.transfers import Transfer
from ..owners import Owners
from .sharing import CellEntry, shared_out
from .stages import Stages

__all__ = ["CellTask", "Delegation", "delegation"]


@final
@dataclass(frozen=True, slots=True)
class CellTask:
    """A box that a slot reduces inside its cell, for an owner there or elsewhere, and whose contributions these are."""

    owner: Slot
    box: Box
    members: tuple[Slot, ...]


@cached(256)
def delegation(owners: Owners, stages: Stages) -> Delegation:
    """The tasks of a staged reduction, worked out once."""
    return Delegation(owners, stages)


@final
class Delegation:
    """A reduction in hops: inside each cell, from cell to cell, and where results are spread, back the same way."""

    def __init__(self, owners: Owners, stages: Stages) -> None:
        self.owners = owners
        self._cells = stages.cells(owners.step.source.mesh)
        self._boxes: dict[Slot, dict[Box, tuple[Slot, ...]]] = {}
        self._spread: dict[Slot, tuple[tuple[Slot, ...], tuple[CellEntry, ...], tuple[Transfer, ...]]] = {}

    def tasks(self, slot: Slot) -> tuple[CellTask, ...]:
        """What a slot reduces inside its cell, its own boxes included."""
        found: dict[tuple[Slot, Box], CellTask] = {}
        for transfer in self._given(slot):
            owner, where = transfer.target_slot, transfer.box
            if self._delegate(self._cells[slot], owner, where) == slot:
                found[owner, where] = CellTask(owner, where, self._inside(self._cells[slot], owner, where))
        for where in self._members(slot):
            inside = self._inside(self._cells[slot], slot, where)
            if inside:
                found[slot, where] = CellTask(slot, where, inside)
        return tuple(found[key] for key in sorted(found))

    def entrusts(self, slot: Slot) -> tuple[tuple[Slot, Transfer], ...]:
        """What a slot gives to delegates in its cell, in the first hop, with the owner that it is for."""
        delegates = (
            (each.target_slot, self._delegate(self._cells[slot], each.target_slot, each.box), each.box)
            for each in self._given(slot)
        )
        return tuple((owner, Transfer(slot, to, where)) for owner, to, where in delegates if to != slot)

    def arriving(self, slot: Slot) -> tuple[tuple[Box, tuple[Slot, ...]], ...]:
        """For each box that a slot owns, the delegates of the cells in order, itself for its own cell."""
        return tuple(
            (where, tuple(self._delegate(cell, slot, where) for cell in self._cells_of(members)))
            for where, members in self._members(slot).items()
        )

    def takes(self, hop: int, slot: Slot) -> tuple[Transfer, ...]:
        """The results that a slot receives in a hop of spreading, from owners and then from others of its cell."""
        _, entries, near = self._spreading(slot)
        if hop == 0:
            direct = [Transfer(each.source_slot, slot, each.box) for each in near]
            return (*direct, *(Transfer(each.sender, slot, each.box) for each in entries if each.taker == slot))
        return tuple(Transfer(each.taker, slot, each.box) for each in entries if each.taker != slot)

    def gives(self, hop: int, slot: Slot) -> tuple[Transfer, ...]:
        """The results that a slot gives in a hop of spreading."""
        if hop == 0:
            takers = dict.fromkeys(transfer.target_slot for transfer in self.owners.gives(slot))
            return tuple(each for taker in takers for each in self.takes(0, taker) if each.source_slot == slot)
        members, entries, _ = self._spreading(slot)
        own = [each.box for each in entries if each.taker == slot]
        return tuple(Transfer(slot, other, where) for other in members if other != slot for where in own)

    def _given(self, slot: Slot) -> Iterable[Transfer]:
        return (transfer for transfer in self.owners.contributes(slot) if has_elements(transfer.box))

    def _members(self, owner: Slot) -> dict[Box, tuple[Slot, ...]]:
        """Whose contributions make up each box that a slot owns."""
        known = self._boxes.get(owner)
        if known is None:
            found: dict[Box, list[Slot]] = {}
            for transfer in self.owners.collects(owner):
                if has_elements(transfer.box):
                    found.setdefault(transfer.box, []).append(transfer.source_slot)
            known = self._boxes[owner] = {where: tuple(members) for where, members in found.items()}
        return known

    def _inside(self, cell: int, owner: Slot, where: Box) -> tuple[Slot, ...]:
        return tuple(member for member in self._members(owner)[where] if self._cells[member] == cell)

    def _cells_of(self, members: Sequence[Slot]) -> list[int]:
        return list(dict.fromkeys(self._cells[member] for member in members))

    def _delegate(self, cell: int, owner: Slot, where: Box) -> Slot:
        """Who reduces in a cell for an owner: itself in its own, elsewhere the one that stands as the owner does in its."""
        if self._cells[owner] == cell:
            return owner
        inside = self._inside(cell, owner, where)
        beside = self._inside(self._cells[owner], owner, where)
        turn = beside.index(owner) if owner in beside else owner
        return inside[turn % len(inside)]

    def _spreading(self, slot: Slot) -> tuple[tuple[Slot, ...], tuple[CellEntry, ...], tuple[Transfer, ...]]:
        """Those of a cell that receive the same results as a slot, what enters it for them, and what is there already."""
        known = self._spread.get(slot)
        if known is not None:
            return known
        mine = self._wanted(slot)
        others = {transfer.target_slot for owner, _ in mine[:1] for transfer in self.owners.gives(owner)}
        cell = self._cells[slot]
        members = tuple(sorted(each for each in others if self._cells[each] == cell and self._wanted(each) == mine))
        near = tuple(Transfer(owner, slot, where) for owner, where in mine if self._cells[owner] == cell)
        far = [((owner,), where) for owner, where in mine if self._cells[owner] != cell]
        known = members, shared_out(far, members, turn=cell), near
        self._spread.update(dict.fromkeys(members, known))
        return known

    def _wanted(self, slot: Slot) -> list[tuple[Slot, Box]]:
        return [(each.source_slot, each.box) for each in self.owners.takes(slot) if has_elements(each.box)]
