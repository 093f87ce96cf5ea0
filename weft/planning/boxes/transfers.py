"""Who sends which box to whom, when nothing is reduced: each process computes only its own part.

The source of a piece is the receiver itself where it holds the piece, else one of its
holders: on one mesh the one with the receiver's own coordinates, across meshes a nearest
one, with the receivers dealt out among equally near holders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

from ...caches import cached
from ...devices import Device
from ...sharding.geometry import Box, Interval, box_at, interval, slots_at
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh, Slot
from ..topology import Topology
from .census import split_sizes
from .crossing import same_slots
from .pieces import Coords, flat_index, locate, overlapping

__all__ = ["Transfer", "nearest", "receives", "routes", "sends"]


@final
@dataclass(frozen=True, slots=True)
class Transfer:
    """One box of the global index space on its way from a slot of the source's mesh to one of the target's.

    >>> Transfer(0, 1, ((0, 4),))
    Transfer(source_slot=0, target_slot=1, box=((0, 4),))
    """

    source_slot: Slot
    target_slot: Slot
    box: Box


def receives(
    source: Layout, target: Layout, shape: Sequence[int], slot: Slot, *, topology: Topology | None = None
) -> tuple[Transfer, ...]:
    """The boxes that make up what a slot of the target's mesh holds afterwards: what it keeps first, then by sender.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 2})
    >>> rows, columns = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",)))
    >>> [(t.source_slot, t.box) for t in receives(rows, columns, (4, 4), 1)]
    [(1, ((2, 4), (2, 4))), (0, ((0, 2), (2, 4)))]
    """
    return routes(source, target, tuple(shape), topology).receives(slot)


def sends(
    source: Layout, target: Layout, shape: Sequence[int], slot: Slot, *, topology: Topology | None = None
) -> tuple[Transfer, ...]:
    """The boxes that a slot of the source's mesh gives: to itself first, then by receiver.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 2})
    >>> rows, columns = Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",)))
    >>> [(t.target_slot, t.box) for t in sends(rows, columns, (4, 4), 0)]
    [(0, ((0, 2), (0, 2))), (1, ((0, 2), (2, 4)))]
    """
    return routes(source, target, tuple(shape), topology).sends(slot)


@cached(1024)
def routes(source: Layout, target: Layout, shape: tuple[int, ...], topology: Topology | None = None) -> Routes:
    """The routes from one layout to another of a tensor of this shape."""
    kind = SameMesh if source.mesh == target.mesh else AcrossMeshes
    return kind(source, target, shape, topology or Topology())


def nearest(topology: Topology, device: Device, mesh: DeviceMesh, slots: Sequence[Slot]) -> list[Slot]:
    """Those of some slots that are nearest to a device."""
    tiers = [topology.tier(device, mesh.devices[slot]) for slot in slots]
    least = min(tiers)
    return [slot for slot, tier in zip(slots, tiers, strict=True) if tier == least]


class Routes:
    """Which slot each piece comes from. Subclasses choose among the holders of a piece."""

    def __init__(self, source: Layout, target: Layout, shape: tuple[int, ...], topology: Topology) -> None:
        self.source, self.target, self.shape, self.topology = source, target, shape, topology
        self.source_counts = [split_sizes(source, dim) for dim in range(len(shape))]
        self.target_counts = [split_sizes(target, dim) for dim in range(len(shape))]
        index = source.mesh.index_of
        self.source_axes = [index[axis] for axes in source.splits for axis in axes]
        self.shared_axes: list[int] = []
        self._holders: dict[Coords, list[Slot]] = {}
        index = target.mesh.index_of
        self.target_axes = [index[axis] for axes in target.splits for axis in axes]
        begun = set(target.pending_axes) - set(source.pending_axes)
        self.begun = [(n, axis) for n, axis in enumerate(self.source_axes) if source.mesh.axis_names[axis] in begun]

    def contributes(self, coords: Coords, piece: Coords) -> bool:
        """Whether a piece is a receiver's: where a reduction begins, those at its own coordinate are."""
        return all(coords[axis] == piece[n] for n, axis in self.begun)

    def receives(self, slot: Slot) -> tuple[Transfer, ...]:
        """See `receives`."""
        coords = self.target.mesh.coords(slot)
        own = self.own_slot(slot)
        where = box_at(self.target, self.shape, coords)
        found = [
            Transfer(self.choose(slot, coords, piece), slot, part)
            for piece, part in self.meeting(self.source_counts, where)
            if self.contributes(coords, piece)
        ]
        return tuple(sorted(found, key=lambda t: (t.source_slot != own, t.source_slot, t.box)))

    def sends(self, slot: Slot) -> tuple[Transfer, ...]:
        """See `sends`."""
        coords = self.source.mesh.coords(slot)
        piece = tuple(coords[i] for i in self.source_axes)
        found = []
        for pinned, part in self.meeting(self.target_counts, box_at(self.source, self.shape, coords)):
            for candidate in self.candidates(coords, pinned):
                receiver = self.target.mesh.coords(candidate)
                if self.contributes(receiver, piece) and self.choose(candidate, receiver, piece) == slot:
                    found.append(Transfer(slot, candidate, part))
        own = self.source.mesh.slot_ids[slot]
        ids = self.target.mesh.slot_ids
        return tuple(sorted(found, key=lambda t: (ids[t.target_slot] != own, t.target_slot, t.box)))

    def holders(self, slot: Slot) -> Iterator[tuple[list[Slot], Box]]:
        """For each piece of what a slot of the target's mesh wants, the slots that hold it."""
        where = box_at(self.target, self.shape, self.target.mesh.coords(slot))
        for piece, part in self.meeting(self.source_counts, where):
            yield self._holders_of(piece), part

    def _holders_of(self, piece: Coords) -> list[Slot]:
        known = self._holders.get(piece)
        if known is None:
            first = {self.source.mesh.index_of[axis]: 0 for axis in self.source.pending_axes}
            at = first | dict(zip(self.source_axes, piece, strict=True))
            known = self._holders[piece] = list(slots_at(self.source.mesh, at))
        return known

    def meeting(self, counts: Sequence[Coords], where: Box) -> Iterator[tuple[Coords, Box]]:
        """Pieces of the other side that meet a box: their coordinates, dim after dim, and the common box."""
        per_dim: list[list[tuple[Coords, Interval]]] = [
            list(overlapping(size, count, *part)) for size, count, part in zip(self.shape, counts, where, strict=True)
        ]
        for combination in product(*per_dim):
            yield tuple(c for coords, _ in combination for c in coords), tuple(part for _, part in combination)

    def own_slot(self, slot: Slot) -> Slot | None:
        """The slot of the source's mesh where a slot of the target's mesh stands, if any."""
        raise NotImplementedError

    def choose(self, slot: Slot, coords: Coords, piece: Coords) -> Slot:
        """The slot that a receiver takes a piece from."""
        raise NotImplementedError

    def candidates(self, coords: Coords, pinned: Coords) -> Iterator[Slot]:
        """Receivers, with the target coordinates `pinned`, that might take a piece from a slot at these coordinates."""
        shared = {axis: coords[axis] for axis in self.shared_axes}
        wanted = dict(zip(self.target_axes, pinned, strict=True))
        if any(shared.get(axis, coord) != coord for axis, coord in wanted.items()):
            return iter(())
        return slots_at(self.target.mesh, shared | wanted)


@final
class SameMesh(Routes):
    """Movement on one mesh: along axes that split nothing in the source, a receiver looks at its own coordinate."""

    def __init__(self, source: Layout, target: Layout, shape: tuple[int, ...], topology: Topology) -> None:
        super().__init__(source, target, shape, topology)
        mesh = source.mesh
        index = mesh.index_of
        crowded = [
            axis for axis in source.replicated_axes if axis in target.dim_of and source.splits[target.dim_of[axis]]
        ]
        # Receivers that need one piece then all stand at few coordinates of such an axis, and
        # would all ask the holder at their own: they are dealt out along the axis instead.
        self.rotated = [index[axis] for axis in crowded]
        split = set(self.source_axes)
        self.shared_axes = [i for i in range(mesh.ndim) if i not in split and i not in self.rotated]

    def own_slot(self, slot: Slot) -> Slot | None:
        return slot

    def choose(self, slot: Slot, coords: Coords, piece: Coords) -> Slot:
        mesh = self.source.mesh
        at = list(coords)
        turn = 0
        for axis, coord in zip(self.source_axes, piece, strict=True):
            turn += (coords[axis] - coord) % mesh.mesh_shape[axis]
            at[axis] = coord
        if not turn or not self.rotated:
            return mesh.slot(at)
        nearest = mesh.slot(at)
        for axis in self.rotated:
            at[axis] = (at[axis] + turn) % mesh.mesh_shape[axis]
        turned = mesh.slot(at)
        here, devices, tier = mesh.devices[slot], mesh.devices, self.topology.tier
        return turned if tier(here, devices[turned]) <= tier(here, devices[nearest]) else nearest


@final
class AcrossMeshes(Routes):
    """Movement between meshes: a receiver that holds a piece keeps it; others share its nearest holders."""

    def __init__(self, source: Layout, target: Layout, shape: tuple[int, ...], topology: Topology) -> None:
        super().__init__(source, target, shape, topology)
        self.own_slots = same_slots(source.mesh, target.mesh)
        split = set(self.target_axes)
        self.target_free = [i for i in range(target.mesh.ndim) if i not in split]

    def own_slot(self, slot: Slot) -> Slot | None:
        return self.own_slots[slot]

    def choose(self, slot: Slot, coords: Coords, piece: Coords) -> Slot:
        holders = self._holders_of(piece)
        own = self.own_slot(slot)
        if own is not None and own in holders:
            return own
        if len(holders) == 1:
            return holders[0]
        near = nearest(self.topology, self.target.mesh.devices[slot], self.source.mesh, holders)
        return near[self._turn(coords, piece) % len(near)]

    def _turn(self, coords: Coords, piece: Coords) -> int:
        """The position of a receiver among all that need a piece."""
        sizes, turn = self.target.mesh.mesh_shape, 0
        used = 0
        for dim, (size, held, wanted) in enumerate(
            zip(self.shape, self.source_counts, self.target_counts, strict=True)
        ):
            if not wanted:
                used += len(held)
                continue
            start, stop = interval(size, list(zip(held, piece[used : used + len(held)], strict=True)))
            used += len(held)
            index = self.target.mesh.index_of
            mine = flat_index(wanted, [coords[index[axis]] for axis in self.target.splits[dim]])
            first = flat_index(wanted, locate(size, wanted, start)[0])
            last = flat_index(wanted, locate(size, wanted, stop - 1)[0])
            turn = turn * (last - first + 1) + mine - first
        for axis in self.target_free:
            turn = turn * sizes[axis] + coords[axis]
        return turn
