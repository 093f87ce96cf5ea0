"""Steps that move boxes and reduce nothing, over processes."""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from ...planning import Exchange, FillPartial, Permute, ReduceExchange, Step
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
    targets = new_pieces(step.target, step.shape, dtype)
    if isinstance(step, Exchange):
        fill_neutral(targets, step, dtype)
    wire = wire_device(step.source.mesh, step.target.mesh)
    exchange(_parcels(step, processes), pieces, targets, dtype, shared(processes), wire)
    if isinstance(step, Exchange) and step.scale != 1:
        for target in targets:
            target.mul_(step.scale)
    return targets


def fill_neutral(pieces: Pieces, step: Exchange | ReduceExchange, dtype: torch.dtype) -> None:
    """Writes the neutral element everywhere, where a reduction begins to be pending."""
    if step.neutral is not None:
        for piece in pieces:
            piece.fill_(neutral(step.neutral, dtype))


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


@lru_cache(maxsize=8192)
def _parcels(step: Step, processes: Processes) -> Parcels:
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


forget_with_residences(_parcels.cache_clear)


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


def fill(pieces: Pieces, step: FillPartial, dtype: torch.dtype) -> Pieces:
    """Makes contributions of what this process stores; nothing travels."""
    here, there = holding(step.source), holding(step.target)
    result = []
    for slot in there.slots:
        piece = there.piece_of[slot]
        out = torch.full(
            there.piece_shape(piece, step.shape), neutral(step.op, dtype), dtype=dtype, device=there.devices[piece]
        )
        origin = here.piece_of[slot]
        held, where = here.box(origin, step.shape), there.box(piece, step.shape)
        common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(held, where, strict=True))
        if step.keeps(slot) and all(start < stop for start, stop in common):
            kept = pieces[origin][slices(within(common, held))]
            out[slices(within(common, where))].copy_(kept if step.scale == 1 else kept * step.scale)
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
    return parcelled(copies, leaving, arriving, processes)


forget_with_residences(_permuted.cache_clear)
