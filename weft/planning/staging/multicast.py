"""`Multicast`: who sends which box to whom where replicas in a cell share what comes from beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ...caches import cached
from ...sharding.geometry import Box, box_at, holders, slots_at
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..boxes.pieces import Coords
from ..boxes.transfers import Transfer, nearest, routes
from .sharing import CellEntry, shared_out
from .stages import Stages

__all__ = ["Multicast", "multicast"]


@dataclass(frozen=True, slots=True)
class _WantedInCell:
    """What replicas in one cell want: pieces that are held there, and entries for all of them."""

    members: tuple[Slot, ...]
    near: tuple[tuple[tuple[Slot, ...], Box], ...]
    """Pieces, each with its holders in the cell."""
    entries: tuple[CellEntry, ...]


@cached(256)
def multicast(source: Layout, target: Layout, shape: tuple[int, ...], stages: Stages) -> Multicast:
    """The routes of a staged movement, worked out once."""
    return Multicast(source, target, shape, stages)


@final
class Multicast:
    """A movement in two hops: into each cell once, then among the replicas in it.

    In the second hop, sources are slots of the target's mesh too: they pass on what they have received.

    >>> from weft.planning.topology import Tier, Topology
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 4})
    >>> stages = Stages(Topology(devices_per_host=2), Tier.HOST)
    >>> staged = multicast(Layout(mesh, (("a",),)), Layout(mesh, ((),)), (8,), stages)
    >>> [(t.source_slot, t.box) for t in staged.receives(0, 0)]
    [(0, ((0, 2),)), (1, ((2, 4),)), (2, ((4, 6),))]
    >>> [(t.source_slot, t.box) for t in staged.receives(1, 0)]
    [(1, ((6, 8),))]
    """

    def __init__(self, source: Layout, target: Layout, shape: tuple[int, ...], stages: Stages) -> None:
        self.source, self.target, self.shape = source, target, shape
        self._routes = routes(source, target, shape, stages.topology)
        self._from, self._to = stages.cells(source.mesh), stages.cells(target.mesh)
        self._same = source.mesh == target.mesh
        self._known: dict[Slot, _WantedInCell] = {}

    def receives(self, hop: int, slot: Slot) -> tuple[Transfer, ...]:
        """What a slot of the target's mesh receives in a hop, itself as a source included."""
        cell = self._cell(slot)
        if hop == 0:
            own = self._routes.own_slot(slot)
            turn = cell.members.index(slot)
            near = [
                Transfer(own if own is not None and own in holders else holders[turn % len(holders)], slot, part)
                for holders, part in cell.near
            ]
            return (*near, *(Transfer(each.sender, slot, each.box) for each in cell.entries if each.taker == slot))
        return tuple(Transfer(each.taker, slot, each.box) for each in cell.entries if each.taker != slot)

    def sends(self, hop: int, slot: Slot) -> tuple[Transfer, ...]:
        """What a slot gives in a hop: in the first one of the source's mesh, in the second one of the target's."""
        if hop == 0:
            return tuple(
                transfer
                for receiver in self._receivers(slot)
                for transfer in self.receives(0, receiver)
                if transfer.source_slot == slot
            )
        cell = self._cell(slot)
        own = [each.box for each in cell.entries if each.taker == slot]
        return tuple(Transfer(slot, other, where) for other in cell.members if other != slot for where in own)

    def _receivers(self, slot: Slot) -> Iterator[Slot]:
        """The slots of the target's mesh that want something of what a slot holds."""
        mesh = self.target.mesh
        coords = self.source.mesh.coords(slot)
        kept = [mesh.index_of[axis] for axis in self.source.pending_axes] if self._same else []
        for pinned, _ in self._routes.meeting(self._routes.target_counts, box_at(self.source, self.shape, coords)):
            wanted = dict(zip(self._routes.target_axes, pinned, strict=True))
            yield from slots_at(mesh, {axis: coords[axis] for axis in kept} | wanted)

    def _cell(self, slot: Slot) -> _WantedInCell:
        known = self._known.get(slot)
        if known is None:
            members = self._members(slot)
            known = self._made(members)
            self._known.update(dict.fromkeys(members, known))
        return known

    def _members(self, slot: Slot) -> tuple[Slot, ...]:
        """The replicas of a slot's shard in its cell, itself included."""
        return tuple(at for at in holders(self.target, slot) if self._to[at] == self._to[slot])

    def _made(self, members: tuple[Slot, ...]) -> _WantedInCell:
        first, found = members[0], self._routes
        cell, coords = self._to[first], self.target.mesh.coords(first)
        near: list[tuple[tuple[Slot, ...], Box]] = []
        far: list[tuple[Sequence[Slot], Box]] = []
        for piece, part in found.meeting(found.source_counts, box_at(self.target, self.shape, coords)):
            if not found.contributes(coords, piece):
                continue
            held = self._holders(coords, piece)
            within = tuple(holder for holder in held if self._from[holder] == cell)
            if within:
                near.append((within, part))
            else:
                here = self.target.mesh.devices[first]
                far.append((nearest(found.topology, here, self.source.mesh, held), part))
        return _WantedInCell(members, tuple(near), shared_out(far, members, turn=cell))

    def _holders(self, coords: Coords, piece: Coords) -> list[Slot]:
        mesh = self.source.mesh
        waiting = (mesh.index_of[axis] for axis in self.source.pending_axes)  # contributions are moved as they are
        at = {axis: coords[axis] for axis in waiting} | dict(zip(self._routes.source_axes, piece, strict=True))
        return list(slots_at(mesh, at))
