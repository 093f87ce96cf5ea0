"""`AcrossWork`: who collects which contributions and who gets which results, box by box."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

from ...caches import cached
from ...sharding.geometry import Box, volume
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ...sharding.placements import ReduceOp
from ..boxes.census import Shape
from ..step import Bytes, live_pending
from ..topology import Topology
from .balance import SETTLED, Choice, Shares, balanced
from .cells import Holders, Place, Places, cells_between
from .extent import FEW, is_small
from .recipes import Begun, Recipe, Reduced, StaysPending

__all__ = ["AcrossWork", "Gift", "Sum", "least_received", "work_between"]

ASKED = 8
"""How often every holder is asked to collect a cell, at least, where not all are asked for each."""
MOST_LEVELS = 16
"""Loads that a bound is looked for at."""


@final
@dataclass(frozen=True, slots=True)
class Sum:
    """Contributions of slots of the source to a box, in order, that come together at a place; after an earlier sum, if any."""

    place: Place
    box: Box
    slots: tuple[Slot, ...]
    lower: int | None = None


@final
@dataclass(frozen=True, slots=True)
class Gift:
    """A box that a slot of the target gets: of a sum, or (where that is None) of what a slot of the source holds."""

    to: Slot
    box: Box
    sum: int | None
    origin: Slot = 0


@final
@dataclass(frozen=True)
class AcrossWork:
    """All that happens, in three rounds: contributions to sums, sums to later sums, gifts."""

    places: Places
    sums: tuple[Sum, ...]
    gifts: tuple[Gift, ...]
    adds: bool
    """Whether gifts to one slot may be of the same elements, and add up."""

    @cached_property
    def received(self) -> tuple[int, ...]:
        """How many elements each place receives."""
        found = [0] * self.places.count
        for _, givers, to, size in self.transfers():
            found[to] += size * (len(givers) - givers.count(to))
        return tuple(found)

    @property
    def chains(self) -> bool:
        """Whether some sums go into later ones."""
        return any(each.lower is not None for each in self.sums)

    def transfers(self) -> Iterator[tuple[int, tuple[Place, ...], Place, int]]:
        """What goes from places to a place: in which round, from where, to where, how many elements from each."""
        for each in self.sums:
            size = volume(each.box)
            yield 0, each.slots, each.place, size  # a slot of the source is the place of the same number
            if each.lower is not None:
                yield 1, (self.sums[each.lower].place,), each.place, size
        for gift in self.gifts:
            giver = gift.origin if gift.sum is None else self.sums[gift.sum].place
            yield 2, (giver,), self.places.of_target[gift.to], volume(gift.box)


@cached(512)
def work_between(source: Layout, target: Layout, shape: Shape, topology: Topology) -> AcrossWork:
    """What happens between two meshes.

    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 4}), make_mesh({"b": 2})
    >>> summed = Layout(here, ((),), {"a": ReduceOp.SUM})
    >>> work_between(summed, Layout(there, (("b",),)), (24,), Topology()).received
    (18, 18, 18, 18)
    """
    return _WorkInProgress(source, target, shape, topology).work()


@cached(512)
def least_received(source: Layout, target: Layout, shape: Shape) -> Bytes:
    """The fewest elements that the place that receives most, and all together, must receive.

    >>> from weft.sharding.mesh import make_mesh
    >>> here, there = make_mesh({"a": 4}), make_mesh({"b": 2})
    >>> least_received(Layout(here, ((),), {"a": ReduceOp.SUM}), Layout(there, (("b",),)), (24,))
    Bytes(max=18, total=72)
    """
    sharing = _shared_out(source, target, shape)
    demands, fixed, loads = sharing.demands, sharing.fixed, sharing.shares.loads
    several = [option for choice in demands for option in choice if len(option) > 1]
    highest = {max(option, key=loads.__getitem__) for option in several}
    lower = {place for option in several for place in option} - highest
    most = 0.0
    step = SETTLED * max(loads, default=0.0) or 1.0
    levels = sorted({round(load / step): load for load in loads}.values())
    for level in levels[:: max(1, -(-len(levels) // MOST_LEVELS))]:
        above = {place for place, load in enumerate(loads) if load >= level * (1 - SETTLED)}
        most = max(most, _least(demands, fixed, above), _least(demands, fixed, above - lower or above))
    return Bytes(math.ceil(most - 1e-6 * most), round(sum(loads)))


def _least(demands: Mapping[Choice, float], fixed: Sequence[float], places: Collection[Place]) -> float:
    """What some places must receive on average, whoever is chosen."""
    total = sum(fixed[place] for place in places)
    for choice, amount in demands.items():
        total += amount * min(sum(place in places for place in option) for option in choice)
    return total / len(places)


class _Receivers(NamedTuple):
    """What has to be received between two layouts, and who receives it."""

    places: Places
    recipes: tuple[Recipe, ...]
    demands: Mapping[Choice, float]
    fixed: Sequence[float]
    shares: Shares


@cached(64)
def _shared_out(source: Layout, target: Layout, shape: Shape) -> _Receivers:
    places = Places(source, target)
    recipes = tuple(_recipes(source, target, shape, places))
    demands, fixed = _needs(recipes)
    return _Receivers(places, recipes, demands, fixed, balanced(demands, fixed))


def _needs(recipes: Sequence[Recipe]) -> tuple[dict[Choice, float], list[float]]:
    """What has to be received by whoever is chosen, and by places in any case."""
    demands: dict[Choice, float] = {}
    fixed = [0.0] * (recipes[0].places.count if recipes else 0)
    for recipe in recipes:
        size = volume(recipe.cell.box)
        for choice, times in ((recipe.collecting, recipe.weight), (recipe.giving, 1)):
            if choice:
                demands[choice] = demands.get(choice, 0.0) + times * size
        for place in recipe.always:
            fixed[place] += size
    return demands, fixed


def _recipes(source: Layout, target: Layout, shape: Shape, places: Places) -> Iterator[Recipe]:
    kind, cells = _recipe(source, target), list(cells_between(source, target, shape))
    if is_small(source, target, shape):
        yield from (kind(cell, places, tuple(cell.holders.which)) for cell in cells)
        return
    alike, turns = Counter(cell.holders for cell in cells), Counter[Holders]()
    for cell in cells:
        holders = tuple(cell.holders.which)
        count = max(FEW, -(-ASKED * len(holders) // alike[cell.holders]))
        first = turns[cell.holders] * count % len(holders)
        turns[cell.holders] += 1
        yield kind(cell, places, (holders + holders)[first : first + min(count, len(holders))])


def _recipe(source: Layout, target: Layout) -> type[Recipe]:
    if not live_pending(source):
        return Begun
    sizes = target.mesh.shape
    alone = all(sizes[axis] == 1 for axis in target.replicated_axes)
    means = any(op is ReduceOp.AVG for _, op in (*source.pending, *target.pending))
    return StaysPending if live_pending(target) and alone and not means else Reduced


@final
class _WorkInProgress:
    """Sums and gifts, as they are taken down."""

    def __init__(self, source: Layout, target: Layout, shape: Shape, topology: Topology) -> None:
        sharing = _shared_out(source, target, shape)
        self._places, self._recipes = sharing.places, sharing.recipes
        self._left = {choice: list(amounts) for choice, amounts in sharing.shares.of.items()}
        self._waiting = Counter(recipe.collecting for recipe in self._recipes if len(recipe.rows) == 1)
        """For how many more cells each choice is made, where each of them is collected at once."""
        self._owed = [0.0] * self._places.count
        """What places took less than their share, because boxes are cut between rows; the next cells make up for it."""
        self._cells = [(topology.host_of(device), topology.rack_of(device)) for device in self._places.devices]
        self._sums: list[Sum] = []
        self._gifts: list[Gift] = []
        self._sent = [0] * source.mesh.num_devices

    def work(self) -> AcrossWork:
        """Shares out what has to be received, and takes down who does."""
        left = self._left
        for recipe in self._recipes:
            for slot, to in recipe.staying():
                self.pass_on(slot, to, recipe.cell.box)
            self._settle(recipe.collecting, before=True)
            for row, box in _cut(recipe.cell.box, 1, left.get(recipe.giving, [])):
                for index, part in _cut(box, recipe.weight, left.get(recipe.collecting, [])):
                    collector = recipe.collecting[index][0] if recipe.collecting else None
                    recipe.write(self, part, recipe.rows[row], collector)
            self._settle(recipe.collecting, before=False)
        adds = bool(self._recipes) and isinstance(self._recipes[0], StaysPending)
        return AcrossWork(self._places, tuple(self._sums), tuple(self._gifts), adds)

    def _settle(self, choice: Choice, *, before: bool) -> None:
        """Adds what is owed to places to their shares of the last cell of a choice, and takes down what they are owed after it."""
        if self._waiting[choice] == 1:
            left = self._left.get(choice, [])
            for index, ((place,), amount) in enumerate(zip(choice, left, strict=True)):
                left[index], self._owed[place] = (amount + self._owed[place], 0.0) if before else (0.0, amount)
        if not before:
            self._waiting[choice] -= 1

    def sum(self, place: Place, box: Box, slots: Sequence[Slot], lower: int | None = None) -> int:
        """See `Writer`."""
        self._sums.append(Sum(place, box, tuple(slots), lower))
        return len(self._sums) - 1

    def give(self, number: int, to: Slot, box: Box) -> None:
        """See `Writer`."""
        self._gifts.append(Gift(to, box, number))

    def pass_on(self, slot: Slot, to: Slot, box: Box) -> None:
        """See `Writer`."""
        self._gifts.append(Gift(to, box, None, slot))

    def nearest(self, slots: Sequence[Slot], place: Place, box: Box) -> Slot:
        """See `Writer`: itself, else a near one that has sent little so far."""
        if len(slots) == 1:
            return slots[0]
        cells, of, sent = self._cells, self._places.of_source, self._sent
        for slot in slots:
            if of[slot] == place:
                return slot
        host, rack = cells[place]
        found = min(slots, key=lambda slot: (cells[of[slot]][0] != host, cells[of[slot]][1] != rack, sent[slot]))
        sent[found] += volume(box)
        return found


def _cut(box: Box, times: int, left: list[float]) -> Iterator[tuple[int, Box]]:
    """The parts of a box that options take, each what is left to it at most; `times` is what an element counts."""
    if len(left) < 2 or not box:
        index = max(range(len(left)), key=left.__getitem__, default=0)
        if left:
            left[index] -= times * volume(box)
        yield index, box
        return
    dim = max(range(len(box)), key=lambda dim: box[dim][1] - box[dim][0])
    start, stop = box[dim]
    slab = times * volume(box) / (stop - start)
    wanted = [max(0.0, amount / slab) for amount in left]
    parts, rest = [0] * len(left), stop - start
    for index, rows in enumerate(wanted):
        parts[index] = min(rest, int(rows))
        rest -= parts[index]
    while rest:  # one more for those that are cut off most
        for index in sorted(range(len(left)), key=lambda index: parts[index] - wanted[index])[:rest]:
            parts[index] += 1
            rest -= 1
    for index, rows in enumerate(parts):
        if rows:
            left[index] -= rows * slab
            yield index, (*box[:dim], (start, start + rows), *box[dim + 1 :])
            start += rows
