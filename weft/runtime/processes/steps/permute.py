"""Whole shards change places."""

from __future__ import annotations

import math
from typing import final

import torch

from ....sharding.geometry import box, has_elements
from ....sharding.layout import Layout
from ...holding import Pieces, holding
from ...machine import residence
from .. import world
from ..group import Processes, group_if_shared
from ..mesh_processes import owners_of, wire_device
from ..transport.exchange import exchange, is_compared
from ..transport.messages import MessageList, Messages
from .new_pieces import NewPieces
from .occupancy import most_slots, occupancy, stored_part

__all__ = ["PermuteStage", "Route"]

Route = tuple[int | None, ...]
"""For each slot, the slot whose shard it gets, or None for zeros."""


@final
class PermuteStage:
    """What this process does when whole shards change places; slots that get none get zeros."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], route: Route, itemsize: int) -> None:
        self.processes = owners_of(layout.mesh)
        self._wire = wire_device(layout.mesh)
        self._messages = _permuted(layout, shape, route, self.processes)
        self._targets = NewPieces(layout, shape)
        self._empty = [piece for piece, slot in enumerate(holding(layout).slots) if route[slot] is None]
        self._limit = math.prod(shape) * itemsize * most_slots(layout.mesh)
        self.is_compared = is_compared(self.processes, self._limit, self._wire)

    def run(self, pieces: Pieces, dtype: torch.dtype) -> Pieces:
        """The pieces after the shards have changed places."""
        targets = self._targets.new(dtype)
        for piece in self._empty:
            targets[piece].zero_()
        exchange(self._messages, pieces, targets, dtype, group_if_shared(self.processes), self._wire, self._limit)
        return targets


def _permuted(layout: Layout, shape: tuple[int, ...], route: Route, processes: Processes) -> Messages:
    here = world.current().process
    owners = residence(layout.mesh).owners
    found = MessageList()
    for target, source in enumerate(route):
        if source is None or not occupancy(layout, owners[target]).is_first(target):
            continue
        near = occupancy(layout, owners[target]).same_shard(source)
        if not has_elements(box(layout, shape, target)):
            continue
        if owners[target] == here:
            into = stored_part(layout, shape, target, box(layout, shape, target))
            if near is not None:
                found.copy(stored_part(layout, shape, near, box(layout, shape, source)), into)
            else:
                found.arrive(owners[source], target, into)
        elif owners[source] == here and near is None:
            found.leave(owners[target], target, stored_part(layout, shape, source, box(layout, shape, source)))
    return found.among(processes)
