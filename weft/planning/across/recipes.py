"""`Recipe`: what has to be received for a cell, and who could receive it.

| before      | after                     | recipe    |                                                                      |
|-------------|---------------------------|-----------|----------------------------------------------------------------------|
| pending     | whole                     | `Reduced` | one collects, all that want the result get it                        |
| pending     | pending, no replicas      | `StaysPending`    | contributions stay where they are wanted; the others go anywhere there |
| pending     | pending, with replicas    | `Reduced` | as above, at one coordinate along the axes that begin to be pending  |
| not pending | pending                   | `Begun`   | one coordinate gets the value, that of a holder where there is one   |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

from ...sharding.geometry import Box
from ...sharding.mesh import Slot
from .balance import Choice
from .cells import Cell, Place, Places

__all__ = ["Begun", "Recipe", "Reduced", "StaysPending", "Writer"]


class Writer(Protocol):
    """Takes down who collects what and who gets what."""

    def sum(self, place: Place, box: Box, slots: Sequence[Slot], lower: int | None = None) -> int:
        """Contributions come together at a place, with another sum where one is named; which sum that is."""

    def give(self, number: int, to: Slot, box: Box) -> None:
        """A part of a sum goes to a slot of the target."""

    def pass_on(self, slot: Slot, to: Slot, box: Box) -> None:
        """A part of what a slot of the source holds goes to one of the target."""

    def nearest(self, slots: Sequence[Slot], place: Place, box: Box) -> Slot:
        """The one of several holders that a place takes a box from."""


@dataclass(slots=True)
class Recipe(ABC):
    """What has to be received for a cell.

    Each element is collected by one option of `collecting`, which receives `weight` elements for it, and received once by
    all places of one option of `giving`; those of `always` receive it once in any case.
    """

    cell: Cell
    places: Places
    asked: Sequence[Place]
    """The holders that may collect."""
    collecting: Choice = field(init=False, default=())
    weight: int = field(init=False, default=0)
    giving: Choice = field(init=False, default=())
    rows: list[int] = field(init=False, default_factory=list)
    """For each option of `giving`, the row of `cell.wanted` that it is; without options, the one row that there is."""
    always: tuple[Place, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Fills in what has to be received."""

    def staying(self) -> Sequence[tuple[Slot, Slot]]:
        """The slots of the source whose contributions stay, each with the slot of the target at the same place."""
        return ()

    @abstractmethod
    def write(self, to: Writer, box: Box, row: int, collector: Place | None) -> None:
        """Writes down who collects and gets a box of the cell, where these were chosen."""

    @property
    def received(self) -> int:
        """How often each element is received in all."""
        return self.weight + (len(self.giving[0]) if self.giving else 0) + len(self.always)

    def _row(self, row: int) -> list[Place]:
        return [self.places.of_target[slot] for slot in self.cell.wanted[row]]


@final
@dataclass(slots=True)
class Reduced(Recipe):
    """One place collects all contributions; a place that wants the result adds its own last, where one has any."""

    def _prepare(self) -> None:
        count, holders = len(self.cell.holders.each), self.cell.holders.which
        every = [self._row(row) for row in range(len(self.cell.wanted))]
        holding = [row for row, members in enumerate(every) if any(place in holders for place in members)]
        self.rows = holding or list(range(len(every)))
        if len(self.rows) == 1:
            self.always = tuple(every[self.rows[0]])
        else:
            self.giving = tuple(tuple(every[row]) for row in self.rows)
        if holding:
            self.weight, collectors = count - 2, list(self.asked)
            if len(holding) == 1:  # replicas of what the root adds itself are of no use
                root = self._root(holding[0], holders)
                collectors = [place for place in self.asked if holders[place] != holders[root] or place == root]
        else:
            self.weight, collectors = count - 1, list(self.asked)
            if len(every) == 1:
                collectors += every[0]
        self.collecting = tuple((place,) for place in collectors) if self.weight else ()

    def _root(self, row: int, holders: dict[Place, int]) -> Place:
        """The place of a row that adds its own contribution, if one holds any; they take turns from cell to cell."""
        found = [place for place in self._row(row) if place in holders]
        return found[sum(start for start, _ in self.cell.box) % len(found)] if found else -1

    def write(self, to: Writer, box: Box, row: int, collector: Place | None) -> None:
        holders = self.cell.holders.which
        root = self._root(row, holders)
        if root < 0:
            assert collector is not None
            number = self._sum(to, collector, box)
        elif collector is None or holders[collector] == holders[root]:
            number = self._sum(to, root, box)
        else:
            own = to.nearest(self.cell.holders.each[holders[root]], root, box)
            number = to.sum(root, box, (own,), self._sum(to, collector, box, but=holders[root]))
        for slot in self.cell.wanted[row]:
            to.give(number, slot, box)

    def _sum(self, to: Writer, place: Place, box: Box, but: int | None = None) -> int:
        """All contributions come together at a place, but for one where that is named."""
        holders = self.cell.holders
        slots = holders.alone or [
            to.nearest(each, place, box) for which, each in enumerate(holders.each) if which != but
        ]
        if holders.alone is not None and but is not None:
            slots = (*slots[:but], *slots[but + 1 :])
        return to.sum(place, box, slots)


@final
@dataclass(slots=True)
class StaysPending(Recipe):
    """Contributions stay pending: those that are held where they are wanted stay, the others go to any place there."""

    _missing: list[int] = field(init=False, default_factory=list)

    def _prepare(self) -> None:
        members = [place for row in range(len(self.cell.wanted)) for place in self._row(row)]
        of = self.places.of_source
        wanted = set(members)
        self._missing = [
            number
            for number, slots in enumerate(self.cell.holders.each)
            if not any(of[slot] in wanted for slot in slots)
        ]
        self.rows = list(range(len(self.cell.wanted)))
        if not self._missing:
            return
        self.giving = tuple((place,) for place in members)
        self.weight = len(self._missing) - 1
        if self.weight:
            elsewhere = [of[slot] for number in self._missing for slot in self.cell.holders.each[number]]
            self.collecting = tuple((place,) for place in (*members, *elsewhere))

    def staying(self) -> Sequence[tuple[Slot, Slot]]:
        of = self.places.of_source
        slot_at = {self.places.of_target[slot]: slot for row in self.cell.wanted for slot in row}
        found = [next((slot for slot in slots if of[slot] in slot_at), None) for slots in self.cell.holders.each]
        return [(slot, slot_at[of[slot]]) for slot in found if slot is not None]

    def write(self, to: Writer, box: Box, row: int, collector: Place | None) -> None:
        if not self._missing:
            return
        (last,) = self.cell.wanted[row]
        holders = [self.cell.holders.each[number] for number in self._missing]
        if collector is not None and collector not in self._members:
            number = to.sum(collector, box, [to.nearest(slots, collector, box) for slots in holders])
            to.give(number, last, box)
            return
        first = last if collector is None else self.places.target_slots[collector]
        for slots, member in zip(holders, [first] * self.weight + [last], strict=True):
            to.pass_on(to.nearest(slots, self.places.of_target[member], box), member, box)

    @property
    def _members(self) -> set[Place]:
        return {place for (place,) in self.giving}


@final
@dataclass(slots=True)
class Begun(Recipe):
    """The value begins to be a pending reduction: one coordinate has it, and the others nothing."""

    def _prepare(self) -> None:
        holders = self.cell.holders.which
        lacking = [tuple(p for p in self._row(row) if p not in holders) for row in range(len(self.cell.wanted))]
        least = min(map(len, lacking))
        self.rows = [row for row, places in enumerate(lacking) if len(places) == least]
        if least:
            self.giving = tuple(lacking[row] for row in self.rows)

    def write(self, to: Writer, box: Box, row: int, collector: Place | None) -> None:  # noqa: ARG002 - nothing is collected
        (holders,) = self.cell.holders.each
        for slot in self.cell.wanted[row]:
            to.pass_on(to.nearest(holders, self.places.of_target[slot], box), slot, box)
