"""A rearrangement between processes: strided parts of some tensors become parts of another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from ....caches import cached
from ....planning.rearrangement import Rearrangement, SlotCopy
from ....sharding.mesh import Slot
from ...holding import Pieces, holding
from ...machine import forget_with_residences, residence
from .. import world
from ..communicating import communicating
from ..current_call import call_between
from ..group import Processes, group_if_shared
from ..mesh_processes import owners_of, wire_device
from ..transport.exchange import exchange
from ..transport.messages import MessageList, Messages, StoredBox
from .occupancy import occupancy

__all__ = ["rearrange"]


def rearrange(sources: Sequence[Pieces], plan: Rearrangement, targets: Pieces, dtype: torch.dtype, op: str) -> None:
    """Writes the parts of the sources to their places in the targets, here and in the other processes."""
    mesh = plan.target.layout.mesh
    processes = owners_of(mesh)
    stored = [piece for pieces in sources for piece in pieces]
    source, target = plan.sources[0], plan.target
    call = call_between(f"{op} to {list(target.shape)}", source.layout, target.layout, tuple(source.shape), dtype)
    with communicating(call, processes):
        exchange(_messages(plan, processes), stored, targets, dtype, group_if_shared(processes), wire_device(mesh))


@cached(4096, cleared_by=forget_with_residences)
def _messages(plan: Rearrangement, processes: Processes) -> Messages:
    """Who copies, sends and receives what. What a process holds anywhere does not travel to it."""
    here = world.current().process
    mesh = plan.target.layout.mesh
    owners = residence(mesh).owners
    found = MessageList()
    for process in processes:
        for slot in occupancy(plan.target.layout, process).slots:
            for number, copy in enumerate(plan.copies(slot)):
                near = occupancy(plan.sources[copy.source].layout, process).same_shard(copy.source_slot)
                if process == here and near is not None:
                    found.copy(_given(plan, copy, near), _taken(plan, copy, slot))
                elif process == here:
                    found.arrive(owners[copy.source_slot], (slot, number), _taken(plan, copy, slot))
                elif near is None and owners[copy.source_slot] == here:
                    found.leave(process, (slot, number), _given(plan, copy, copy.source_slot))
    return found.among(processes)


def _given(plan: Rearrangement, copy: SlotCopy, slot: Slot) -> StoredBox:
    """What is read, among the pieces of all sources one after another."""
    counts = [holding(side.layout).count for side in plan.sources]
    base = [0, *accumulate(counts)][copy.source]
    piece = base + holding(plan.sources[copy.source].layout).piece_of[slot]
    return StoredBox(piece, copy.source_part, copy.shape, copy.elements, None)


def _taken(plan: Rearrangement, copy: SlotCopy, slot: Slot) -> StoredBox:
    return StoredBox(holding(plan.target.layout).piece_of[slot], copy.target_part, copy.shape, copy.elements, None)
