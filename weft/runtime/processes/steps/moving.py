"""Steps that move boxes and reduce nothing, over processes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch

from ....planning import Exchange, FillPartial, LocalSlice, Permute, Step
from ....planning.transfers import Transfer, receives, sends
from ....sharding.geometry import Box, box_shape, within
from ....sharding.geometry import box as box_of
from ....sharding.layout import Layout
from ....sharding.mesh import Slot
from ....sharding.placements import ReduceOp
from ...holding import Pieces, holding
from ...host_pool import room
from ...in_process import lazy_clone
from ...machine import residence
from ...reduction import neutral
from .. import world
from ..group import Group, Processes, component, group_of, owners_of, wire_device
from ..transport.exchange import broadcast, exchange
from ..transport.messages import Pair, Parcels, Part, parcelled, part
from ..transport.small_messages import ROOM
from .occupancy import occupancy, slots_of

__all__ = ["BroadcastStage", "FillStage", "MoveStage", "PermuteStage", "Room", "Route", "processes_of", "stored_part"]

Route = tuple[int | None, ...]
"""For each slot, the slot whose shard it gets, or None for zeros."""


def processes_of(step: Step) -> Processes:
    """The processes that carry out a step together with this one."""
    if isinstance(step, LocalSlice):
        return (world.current().process,)
    if step.source.mesh == step.target.mesh:
        return component(step.source.mesh, step.axes)
    return owners_of(step.source.mesh, step.target.mesh)


@final
class Room:
    """Memory for what this process stores of a layout, as often as it is needed."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], fill: ReduceOp | None = None) -> None:
        there = holding(layout)
        self._kinds = [(there.piece_shape(piece, shape), there.devices[piece]) for piece in range(there.count)]
        self._fill = fill

    def new(self, dtype: torch.dtype) -> Pieces:
        """Fresh pieces: neutral elements of the reduction that begins to be pending, else anything."""
        pieces = tuple(room(shape, dtype, device) for shape, device in self._kinds)
        if self._fill is not None:
            for piece in pieces:
                piece.fill_(neutral(self._fill, dtype))
        return pieces


@final
class MoveStage:
    """What this process does in a step that moves boxes."""

    def __init__(self, step: Step, *, is_last: bool) -> None:
        begins = step if isinstance(step, Exchange) else None
        self._processes = processes_of(step)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        self._parcels = parcels_of(step, self._processes)
        self._room = Room(step.target, step.shape, None if begins is None else begins.neutral)
        self._scale = 1 if begins is None else begins.scale
        self._limit = math.prod(step.shape) * step.itemsize
        self._views = None
        if isinstance(step, LocalSlice) and not is_last:
            self._views = _views(self._parcels, holding(step.target).count)
        self._kept = _kept(step, self._parcels) if self._scale == 1 else None
        if self._kept is not None:
            self._parcels = replace(self._parcels, copies=())

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        if self._views is not None:
            return tuple(pieces[part.piece][part.where] for part in self._views)
        group = shared(self._processes)
        if self._kept is not None:
            exchange(self._parcels, pieces, (), dtype, group, self._wire, self._limit)
            return tuple(lazy_clone(pieces[origin]) for origin in self._kept)
        targets = self._room.new(dtype)
        exchange(self._parcels, pieces, targets, dtype, group, self._wire, self._limit)
        if self._scale != 1:
            for target in targets:
                target.mul_(self._scale)
        return targets


def _views(parcels: Parcels, count: int) -> list[Part] | None:
    """For each new piece the part of a stored one that it is, if each is one part."""
    found = {target.piece: source for source, target in parcels.copies}
    return [found[piece] for piece in range(count)] if len(found) == len(parcels.copies) == count else None


def _kept(step: Step, parcels: Parcels) -> list[int] | None:
    """For each new piece the stored one that it is, if nothing arrives and each is whole already."""
    here, there = holding(step.source), holding(step.target)
    if parcels.receives or not parcels.copies:
        return None
    found = {target.piece: source.piece for source, target in parcels.copies}
    if len(found) != len(parcels.copies) or len(found) != there.count:
        return None
    same = all(
        here.piece_shape(source, step.shape) == there.piece_shape(target, step.shape)
        and here.devices[source] == there.devices[target]
        for target, source in found.items()
    )
    return [found[piece] for piece in range(there.count)] if same else None


def shared(processes: Processes) -> Group | None:
    """The group of these processes, unless this one is alone."""
    return group_of(processes) if len(processes) > 1 else None


def parcels_of(step: Step, processes: Processes) -> Parcels:
    """Who copies, sends and receives what. A box that a process holds anywhere does not travel to it."""
    source, target, shape = step.source, step.target, step.shape
    here = world.current().process
    owners, receivers = residence(source.mesh).owners, residence(target.mesh).owners
    held = occupancy(source, here)
    copies: list[tuple[Part, Part]] = []
    leaving: dict[int, list[Pair]] = {}
    arriving: dict[int, list[Pair]] = {}
    for slot in occupancy(target, here).slots:
        for transfer in _receives(step, slot):
            near = held.same_shard(transfer.source_slot)
            into = stored_part(target, shape, slot, transfer.box)
            if not into.size:
                continue
            if near is not None:
                copies.append((stored_part(source, shape, near, transfer.box), into))
            else:
                arriving.setdefault(owners[transfer.source_slot], []).append((_order(transfer), into))
    for slot in slots_of(source.mesh).get(here, ()):
        for transfer in _sends(step, slot):
            to = receivers[transfer.target_slot]
            if to == here or not occupancy(target, to).is_first(transfer.target_slot):
                continue
            given = stored_part(source, shape, slot, transfer.box)
            if given.size and occupancy(source, to).same_shard(slot) is None:
                leaving.setdefault(to, []).append((_order(transfer), given))
    return parcelled(copies, leaving, arriving, processes)


def stored_part(layout: Layout, shape: tuple[int, ...], slot: Slot, where: Box) -> Part:
    """A box of the tensor in the memory of one of this process's slots."""
    stored = holding(layout)
    piece = stored.piece_of[slot]
    return part(piece, within(where, stored.box(piece, shape)), stored.piece_shape(piece, shape))


def _order(transfer: Transfer) -> tuple[object, ...]:
    return transfer.source_slot, transfer.target_slot, transfer.box


def _receives(step: Step, slot: Slot) -> tuple[Transfer, ...]:
    if isinstance(step, Permute):
        return (Transfer(step.source_of(slot), slot, box_of(step.target, step.shape, slot)),)
    if isinstance(step, Exchange):
        return step.receives(slot)
    return receives(step.source, step.target, step.shape, slot)


def _sends(step: Step, slot: Slot) -> tuple[Transfer, ...]:
    if isinstance(step, Permute):
        to = step.target_of(slot)
        return (Transfer(slot, to, box_of(step.target, step.shape, to)),)
    if isinstance(step, Exchange):
        return step.sends(slot)
    return sends(step.source, step.target, step.shape, slot)


@final
class BroadcastStage:
    """What this process does when one process gives its whole tensor to others."""

    def __init__(self, step: Step) -> None:
        self._processes = processes_of(step)
        (self._root,) = owners_of(step.source.mesh)
        self._wire = wire_device(step.source.mesh, step.target.mesh)
        self._step = step

    @classmethod
    def fits(cls, step: Step) -> bool:
        """Whether a step is that, and large enough for the processes to pass it on."""
        whole = step.source.is_replicated and step.target.is_replicated
        large = math.prod(step.shape) * step.itemsize > ROOM
        return whole and large and len(owners_of(step.source.mesh)) == 1

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        there = holding(self._step.target)
        if pieces:
            flat = pieces[0].to(self._wire).resolve_conj().resolve_neg().contiguous().view(-1)
        else:
            flat = room((math.prod(self._step.shape),), dtype, self._wire)
        broadcast(group_of(self._processes), flat, self._root)
        if pieces:
            return tuple(lazy_clone(pieces[0].to(device)) for device in there.devices)
        first, *others = there.devices
        # What has just arrived is nobody else's.
        value = flat.view(self._step.shape).to(first)
        return (value, *[lazy_clone(value.to(device)) for device in others])


@final
class FillStage:
    """What this process does in a step that makes contributions of what is stored; nothing travels."""

    def __init__(self, step: FillPartial) -> None:
        self._step = step
        self._room = Room(step.target, step.shape, step.op)
        here, there = holding(step.source), holding(step.target)
        self._parts: list[tuple[Part, Part]] = []
        for slot in there.slots:
            held = here.box(here.piece_of[slot], step.shape)
            where = there.box(there.piece_of[slot], step.shape)
            common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, where, strict=True))
            if step.keeps(slot) and all(start < stop for start, stop in common):
                source = stored_part(step.source, step.shape, slot, common)
                self._parts.append((source, stored_part(step.target, step.shape, slot, common)))

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the step."""
        targets = self._room.new(dtype)
        for source, target in self._parts:
            kept = pieces[source.piece][source.where]
            targets[target.piece][target.where].copy_(kept if self._step.scale == 1 else kept * self._step.scale)
        return targets


@final
class PermuteStage:
    """What this process does when whole shards change places; slots that get none get zeros."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], route: Route, itemsize: int) -> None:
        self._processes = owners_of(layout.mesh)
        self._wire = wire_device(layout.mesh)
        self._parcels = _permuted(layout, shape, route, self._processes)
        self._room = Room(layout, shape)
        self._empty = [piece for piece, slot in enumerate(holding(layout).slots) if route[slot] is None]
        self._limit = math.prod(shape) * itemsize

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the shards have changed places."""
        targets = self._room.new(dtype)
        for piece in self._empty:
            targets[piece].zero_()
        exchange(self._parcels, pieces, targets, dtype, shared(self._processes), self._wire, self._limit)
        return targets


def _permuted(layout: Layout, shape: tuple[int, ...], route: Route, processes: Processes) -> Parcels:
    here = world.current().process
    owners = residence(layout.mesh).owners
    copies: list[tuple[Part, Part]] = []
    leaving: dict[int, list[Pair]] = {}
    arriving: dict[int, list[Pair]] = {}
    for target, source in enumerate(route):
        if source is None or not occupancy(layout, owners[target]).is_first(target):
            continue
        near = occupancy(layout, owners[target]).same_shard(source)
        if not math.prod(box_shape(box_of(layout, shape, target))):
            continue
        if owners[target] == here:
            into = stored_part(layout, shape, target, box_of(layout, shape, target))
            if near is not None:
                copies.append((stored_part(layout, shape, near, box_of(layout, shape, source)), into))
            else:
                arriving.setdefault(owners[source], []).append((target, into))
        elif owners[source] == here and near is None:
            given = stored_part(layout, shape, source, box_of(layout, shape, source))
            leaving.setdefault(owners[target], []).append((target, given))
    return parcelled(copies, leaving, arriving, processes)
