"""Running a rearrangement: strided copies written straight into the target, within a process and between processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import torch

from ..planning.rearrangement import Copy, Rearrangement
from ..sharding.mesh import Slot
from .holding import Pieces, holding
from .host_pool import room
from .machine import forget_with_residences, residence
from .processes import movement, world
from .processes.current_call import call_between
from .processes.group import Processes, owners_of, wire_device
from .processes.steps.moving import shared
from .processes.steps.occupancy import occupancy
from .processes.transport.exchange import exchange
from .processes.transport.messages import Pair, Parcels, parcelled
from .processes.transport.messages import Part as Stored

__all__ = ["rearrange"]


def rearrange(
    sources: Sequence[Pieces],
    plan: Rearrangement,
    dtype: torch.dtype,
    *,
    fill: float | None = None,
    into: Pieces | None = None,
    op: str = "a rearrangement",
) -> Pieces:
    """The pieces of the result; `op` is what the user called, for errors.

    Where no part lands stands what `into` has there, or `fill`; with neither, the parts cover everything.
    """
    targets = into if into is not None else _new(plan, dtype, fill)
    mesh = plan.target.layout.mesh
    if movement.is_elsewhere(mesh):
        return ()
    if movement.spans(mesh):
        processes = owners_of(mesh)
        stored = [piece for pieces in sources for piece in pieces]
        source, target = plan.sources[0], plan.target
        call = call_between(f"{op} to {list(target.shape)}", source.layout, target.layout, tuple(source.shape), dtype)
        with movement.communicating(call, processes):
            exchange(_parcels(plan, processes), stored, targets, dtype, shared(processes), wire_device(mesh))
    else:
        _copy(sources, plan, targets)
    return tuple(piece.flip(plan.flips) for piece in targets) if plan.flips else targets


def _new(plan: Rearrangement, dtype: torch.dtype, fill: float | None) -> Pieces:
    there = holding(plan.target.layout)
    result = []
    for coords, device in zip(there.coords, there.devices, strict=True):
        shape = [stop - start for start, stop in plan.target.box(coords)]
        if fill is None:
            result.append(room(shape, dtype, device))
        else:
            result.append(torch.full(shape, fill, dtype=dtype, device=device))
    return tuple(result)


def _copy(sources: Sequence[Pieces], plan: Rearrangement, targets: Pieces) -> None:
    held = [holding(side.layout) for side in plan.sources]
    for slot, out in zip(holding(plan.target.layout).slots, targets, strict=True):
        for copy in plan.copies(slot):
            piece = sources[copy.source][held[copy.source].piece_of[copy.source_slot]]
            out[copy.target_part].copy_(piece[copy.source_part])


@lru_cache(maxsize=4096)
def _parcels(plan: Rearrangement, processes: Processes) -> Parcels:
    """Who copies, sends and receives what. What a process holds anywhere does not travel to it."""
    here = world.current().process
    mesh = plan.target.layout.mesh
    owners = residence(mesh).owners
    copies: list[tuple[Stored, Stored]] = []
    leaving: dict[int, list[Pair]] = {}
    arriving: dict[int, list[Pair]] = {}
    for process in processes:
        for slot in occupancy(plan.target.layout, process).slots:
            for number, copy in enumerate(plan.copies(slot)):
                near = occupancy(plan.sources[copy.source].layout, process).same_shard(copy.source_slot)
                if process == here and near is not None:
                    copies.append((_given(plan, copy, near), _taken(plan, copy, slot)))
                elif process == here:
                    origin = owners[copy.source_slot]
                    arriving.setdefault(origin, []).append(((slot, number), _taken(plan, copy, slot)))
                elif near is None and owners[copy.source_slot] == here:
                    given = _given(plan, copy, copy.source_slot)
                    leaving.setdefault(process, []).append(((slot, number), given))
    return parcelled(copies, leaving, arriving, processes)


forget_with_residences(_parcels.cache_clear)


def _given(plan: Rearrangement, copy: Copy, slot: Slot) -> Stored:
    """What is read, among the pieces of all sources one after another."""
    counts = [holding(side.layout).count for side in plan.sources]
    base = [0, *accumulate(counts)][copy.source]
    piece = base + holding(plan.sources[copy.source].layout).piece_of[slot]
    return Stored(piece, copy.source_part, copy.shape, copy.elements, None)


def _taken(plan: Rearrangement, copy: Copy, slot: Slot) -> Stored:
    return Stored(holding(plan.target.layout).piece_of[slot], copy.target_part, copy.shape, copy.elements, None)
