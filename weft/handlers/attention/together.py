"""Attention of devices that are one piece of hardware: one call of a kernel computes for all of them.

Their memories are one, so that whichever way keys would go, nothing has to: what devices have of the sequence is put together, seen by one
call, and cut again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...caches import cached
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...runtime.holding import Pieces, holding
from ...runtime.machine import forget_with_residences
from ...runtime.strides import Strides, in_order
from ...sharding.geometry import Interval
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from .blocks import cuts
from .kernels import Kernel, QueryRows
from .lay import Lay

__all__ = ["attended", "gradients", "lines"]

KINDS = {"cuda"}
"""The devices that compute sooner when they are given more at a time. Bound: the kinds there are. Cleared: never."""

Line = tuple[Slot, ...]
"""The devices that have one sequence together, in its order."""
Made = tuple[Line, Sequence[torch.Tensor]]
"""What was made for the devices of a line."""


@cached(1024, cleared_by=forget_with_residences)
def lines(lay: Lay) -> tuple[Line, ...]:
    """The lines of devices along which the sequence is split; none where some line is more than one piece of hardware."""
    here, mesh = holding(lay.query), lay.query.mesh
    along = {mesh.index_of[axis] for axis in lay.axes}
    found: dict[tuple[int, ...], list[tuple[int, Slot, torch.device]]] = {}
    for slot, coords, device in zip(here.slots, here.coords, here.devices, strict=True):
        beside = tuple(at for axis, at in enumerate(coords) if axis not in along)
        found.setdefault(beside, []).append((lay.part_at(coords), slot, device))
    for line in found.values():
        devices = {device for *_, device in line}
        if len(line) != lay.parts or len(devices) > 1 or devices.pop().type not in KINDS:
            return ()
    return tuple(tuple(slot for _, slot, _ in sorted(line, key=lambda each: each[0])) for line in found.values())


def attended(
    call: BoundCall, kernel: Kernel, lay: Lay, given: Sequence[ShardedTensor], rows: Layout, strides: Sequence[Strides]
) -> tuple[Pieces, Pieces]:
    """The pieces of the result, which lies like the queries, and of its logarithms, which lie as `rows`."""
    outs, logarithms = [], []
    dim = 2 if rows.splits[2] else 1
    for line in lines(lay):
        query, key, value = (_joined(x, line) for x in given)
        out, each = kernel.forward(call, query, key, value, None, lay.is_causal)
        outs.append((line, _cut(out, 2, lay.query_cuts, strides[0])))
        logarithms.append((line, _cut(each, dim, cuts(each.shape[dim], lay.counts), strides[1])))
    return _in_places(outs, lay.query), _in_places(logarithms, rows)


def gradients(
    call: BoundCall,
    kernel: Kernel,
    lay: Lay,
    rows: Sequence[ShardedTensor],
    keys: Sequence[ShardedTensor],
    strides: Sequence[Strides],
) -> list[Pieces]:
    """The pieces of the gradients of queries, keys and values."""
    made: list[list[Made]] = [[], [], []]
    parts = lay.query_cuts, lay.key_cuts, lay.key_cuts
    for line in lines(lay):
        whole = QueryRows(*(_joined(x, line) for x in rows))
        key, value = (_joined(x, line) for x in keys)
        found = kernel.backward(call, whole, key, value, None, lay.is_causal)
        for each, gradient, bounds, order in zip(made, found, parts, strides, strict=True):
            each.append((line, _cut(gradient, 2, bounds, order)))
    layouts = lay.query, lay.split_key, lay.split_key
    return [_in_places(each, layout) for each, layout in zip(made, layouts, strict=True)]


def _joined(x: ShardedTensor, line: Line) -> torch.Tensor:
    """What the devices of a line have of a tensor whose sequence is split, or whose heads are, put together."""
    at = holding(x._layout).piece_of
    parts = [x._value.pieces[at[slot]] for slot in line]
    if not x._layout.splits[2]:
        return torch.cat(parts, 1)
    if x.dim() < 4 or parts[0].stride(1) > parts[0].stride(2):
        return torch.cat(parts, 2)
    return torch.cat([part.transpose(1, 2) for part in parts], 1).transpose(1, 2)  # as it lies in memory


def _cut(x: torch.Tensor, dim: int, bounds: Sequence[Interval], strides: Strides) -> Sequence[torch.Tensor]:
    """Parts of a tensor, each without gaps and with its dims in memory in the order of these strides; even ones are copied at once."""
    strides = strides[: x.dim()]
    if x.shape[dim] % len(bounds):
        return [in_order(x.narrow(dim, start, stop - start), strides) for start, stop in bounds]
    parts = x.unflatten(dim, (len(bounds), -1)).movedim(dim, 0)
    return torch.unbind(in_order(parts, (_COARSEST, *strides)))


_COARSEST = 1 << 62
"""Above all strides."""


def _in_places(made: Sequence[Made], layout: Layout) -> Pieces:
    """What was made for lines of devices, as the pieces of a layout."""
    at = holding(layout)
    found = {at.piece_of[slot]: piece for line, pieces in made for slot, piece in zip(line, pieces, strict=True)}
    return tuple([found[k] for k in range(at.count)])
