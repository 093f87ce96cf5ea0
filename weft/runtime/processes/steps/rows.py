"""Rows between processes: each process knows the route of all of them, so nothing but the rows travels."""

from __future__ import annotations

import math

import torch

from ....sharding.geometry import resized
from ....sharding.layout import Layout
from ....sharding.mesh import Slot
from ...holding import Pieces, holding
from ...machine import residence
from ...route import Route, line_of
from .. import world
from ..communicating import communicating
from ..current_call import call_between
from ..group import group_if_shared
from ..mesh_processes import owners_of, wire_device
from ..transport.exchange import exchange
from ..transport.messages import MessageList, StoredBox
from .occupancy import occupancy

__all__ = ["exchange_rows", "near"]


def near(layout: Layout, slot: Slot) -> int:
    """The number of the piece in this process that a device's rows are."""
    found = occupancy(layout, world.current().process).same_shard(slot)
    assert found is not None, f"device {slot} has nothing of {layout} that is here"
    return holding(layout).piece_of[found]


def exchange_rows(
    pieces: Pieces, layout: Layout, shape: tuple[int, ...], dim: int, route: Route, dtype: torch.dtype, op: str
) -> dict[tuple[Slot, int], torch.Tensor]:
    """The rows that come from other processes, by the device that receives them and the number of the one that sends."""
    here, processes, stored = world.current().process, owners_of(layout.mesh), holding(layout)
    wire = wire_device(layout.mesh)
    messages = MessageList()
    leaving: list[torch.Tensor] = []
    arriving: dict[tuple[Slot, int], torch.Tensor] = {}
    for process in processes:
        for slot in occupancy(layout, process).slots:
            line = line_of(layout, dim, slot)
            number = line.index(slot)
            for sender, source in enumerate(line):
                count, origin = route.counts[sender][number], residence(layout.mesh).owners[source]
                if not count or occupancy(layout, process).same_shard(source) is not None:
                    continue
                if process == here:
                    like = resized(stored.piece_shape(stored.piece_of[slot], shape), dim, count)
                    messages.arrive(origin, (slot, sender), _all_of(len(arriving), like))
                    arriving[slot, sender] = torch.empty(like, dtype=dtype, device=wire)
                elif origin == here:
                    rows = route.sent(pieces[near(layout, source)], dim, sender, number).contiguous()
                    messages.leave(process, (slot, sender), _all_of(len(leaving), tuple(rows.shape)))
                    leaving.append(rows)
    call = call_between(f"{op}, which sends rows,", layout, layout, shape, dtype)
    with communicating(call, processes):
        group = group_if_shared(processes)
        exchange(messages.among(processes), leaving, list(arriving.values()), dtype, group, wire)
    return arriving


def _all_of(piece: int, shape: tuple[int, ...]) -> StoredBox:
    """All of a tensor that is sent or received."""
    size = math.prod(shape)
    return StoredBox(piece, tuple(map(slice, shape)), shape, size, (piece, 0, size))
