"""Steps that move boxes and reduce nothing, over processes."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from ...planning import FillPartial, Permute, Step
from ...planning.transfers import Transfer, receives, sends
from ...sharding.geometry import Box, box_shape, within
from ...sharding.geometry import box as box_of
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ..holding import Pieces, holding, slices
from ..machine import forget_with_residences, residence
from ..reduction import neutral
from . import world
from .group import Group, Processes, component, group_of, owners_of, wire_device
from .occupancy import occupancy, slots_of
from .parcels import Pair, Parcels, Part, parcelled, part
from .wire import exchange

__all__ = ["Route", "fill", "move_step", "permute", "processes_of"]

Route = tuple[int | None, ...]
"""For each slot, the slot whose shard it gets, or None for zeros."""


def processes_of(step: Step) -> Processes:
    """The processes that carry out a step together with this one."""
    if step.source.mesh == step.target.mesh:
        return component(step.source.mesh, step.axes)
    return owners_of(step.source.mesh, step.target.mesh)


def move_step(pieces: Pieces, step: Step, dtype: torch.dtype) -> Pieces:
    """Carries out this process's part of a step that moves boxes."""
    processes = processes_of(step)
    parcels = _parcels(step.source, step.target, step.shape, _origins(step), processes)
    targets = new_pieces(step.target, step.shape, dtype)
    exchange(parcels, pieces, targets, dtype, shared(processes), wire_device(step.source.mesh, step.target.mesh))
    return targets


def shared(processes: Processes) -> Group | None:
    """The group of these processes, unless this one is alone."""
    return group_of(processes) if len(processes) > 1 else None


def new_pieces(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype) -> Pieces:
    """Memory for what this process stores of a layout."""
    there = holding(layout)
    return tuple(
        torch.empty(there.piece_shape(piece, shape), dtype=dtype, device=there.devices[piece])
        for piece in range(there.count)
    )


def _origins(step: Step) -> Permute | None:
    return step if isinstance(step, Permute) else None


@lru_cache(maxsize=8192)
def _parcels(
    source: Layout, target: Layout, shape: tuple[int, ...], permuted: Permute | None, processes: Processes
) -> Parcels:
    """Who copies, sends and receives what. A box that a process holds anywhere does not travel to it."""
    here = world.current().process
    owners, receivers = residence(source.mesh).owners, residence(target.mesh).owners
    held = occupancy(source, here)
    copies: list[tuple[Part, Part]] = []
    leaving: dict[int, list[Pair]] = {}
    arriving: dict[int, list[Pair]] = {}
    for slot in occupancy(target, here).slots:
        for transfer in _receives(source, target, shape, slot, permuted):
            near = held.same_shard(transfer.source_slot)
            into = stored_part(target, shape, slot, transfer.box)
            if not into.size:
                continue
            if near is not None:
                copies.append((stored_part(source, shape, near, transfer.box), into))
            else:
                arriving.setdefault(owners[transfer.source_slot], []).append((_order(transfer), into))
    for slot in slots_of(source.mesh).get(here, ()):
        for transfer in _sends(source, target, shape, slot, permuted):
            to = receivers[transfer.target_slot]
            if to == here or not occupancy(target, to).is_first(transfer.target_slot):
                continue
            given = stored_part(source, shape, slot, transfer.box)
            if given.size and occupancy(source, to).same_shard(slot) is None:
                leaving.setdefault(to, []).append((_order(transfer), given))
    return parcelled(copies, leaving, arriving, processes, here)


forget_with_residences(_parcels.cache_clear)


def stored_part(layout: Layout, shape: tuple[int, ...], slot: Slot, where: Box) -> Part:
    """A box of the tensor in the memory of one of this process's slots."""
    stored = holding(layout)
    piece = stored.piece_of[slot]
    return part(piece, within(where, stored.box(piece, shape)), stored.piece_shape(piece, shape))


def _order(transfer: Transfer) -> tuple[object, ...]:
    return transfer.source_slot, transfer.target_slot, transfer.box


def _receives(
    source: Layout, target: Layout, shape: tuple[int, ...], slot: Slot, permuted: Permute | None
) -> tuple[Transfer, ...]:
    if permuted is None:
        return receives(source, target, shape, slot)
    return (Transfer(permuted.source_of(slot), slot, box_of(target, shape, slot)),)


def _sends(
    source: Layout, target: Layout, shape: tuple[int, ...], slot: Slot, permuted: Permute | None
) -> tuple[Transfer, ...]:
    if permuted is None:
        return sends(source, target, shape, slot)
    to = permuted.target_of(slot)
    return (Transfer(slot, to, box_of(target, shape, to)),)


def fill(pieces: Pieces, step: FillPartial, dtype: torch.dtype) -> Pieces:
    """Makes contributions of what this process stores; nothing travels."""
    here, there = holding(step.source), holding(step.target)
    result = []
    for slot in there.slots:
        piece = there.piece_of[slot]
        out = torch.full(
            there.piece_shape(piece, step.shape), neutral(step.op, dtype), dtype=dtype, device=there.devices[piece]
        )
        if step.keeps(slot):
            origin = here.piece_of[slot]
            kept = pieces[origin] if step.scale == 1 else pieces[origin] * step.scale
            out[slices(within(here.box(origin, step.shape), there.box(piece, step.shape)))].copy_(kept)
        result.append(out)
    return tuple(result)


def permute(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route, dtype: torch.dtype) -> Pieces:
    """Whole shards change places; slots that get none get zeros."""
    there = holding(layout)
    targets = tuple(
        torch.zeros(there.piece_shape(piece, shape), dtype=dtype, device=there.devices[piece])
        for piece in range(there.count)
    )
    processes = owners_of(layout.mesh)
    parcels = _permuted(layout, shape, route, processes)
    exchange(parcels, pieces, targets, dtype, shared(processes), wire_device(layout.mesh))
    return targets


@lru_cache(maxsize=1024)
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
    return parcelled(copies, leaving, arriving, processes, here)


forget_with_residences(_permuted.cache_clear)
