"""All-reduces between accelerators of one process: few launches, and results that lie on one of them shared until written to."""

from __future__ import annotations

from typing import final

import torch

from ..caches import cached
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from . import accelerator_kernels
from .holding import Pieces, holding
from .machine import forget_with_residences
from .memory.host_pool import pooled_empty
from .memory.lazy_copy import lazy_clone
from .reduction import combination, reduce_into
from .traced import hinted

__all__ = ["all_reduced", "is_small"]

_SMALL = 1 << 20
"""Bytes of a contribution up to which the launches of three steps take longer than the bytes that one step moves beyond theirs."""


def all_reduced(pieces: Pieces, source: Layout, target: Layout, shape: tuple[int, ...]) -> Pieces | None:
    """What is pending along all axes that `target` drops, reduced and given to all; None where that cannot be at once."""
    if not accelerator_kernels.serves(pieces):
        return None
    work = _work(source, target)
    if work.divisor not in (1, work.contributions):
        return None
    there, dtype = holding(target), pieces[0].dtype
    is_one = len({*there.devices, *(piece.device for piece in pieces)}) == 1
    outs: dict[int, torch.Tensor] = {}
    if is_one and not accelerator_kernels.wants_few_launches():
        for parts, results in work.groups:
            first, *others = dict.fromkeys(results)
            out = pooled_empty(there.piece_shape(first, shape), dtype, there.devices[first])
            outs[first] = reduce_into(out, work.op, [pieces[part] for part in parts], work.divisor)
            outs |= {other: lazy_clone(out) for other in others}
        return tuple(outs[piece] for piece in range(there.count))
    for piece, device in enumerate(there.devices):
        outs[piece] = pooled_empty(there.piece_shape(piece, shape), dtype, device)
    for parts, results in work.groups:
        targets = [outs[piece] for piece in results]
        if not accelerator_kernels.all_reduce(targets, work.op, [pieces[part] for part in parts]):
            return None
    return tuple(outs[piece] for piece in range(there.count))


def is_small(pieces: Pieces, source: Layout) -> bool:
    """Whether contributions of one kind are so small that one step is quicker than three that move fewer bytes.

    Of several kinds the planner says in which order they are reduced, or that they cannot be.
    """
    if not pieces or len({op for _, op in source.pending}) > 1:
        return False
    (count,) = hinted((pieces[0].numel(),))
    return count * pieces[0].itemsize <= _SMALL


@final
class _ReducingWork:
    """How contributions are combined, and for each group the pieces that contribute and those that get the result."""

    __slots__ = ("contributions", "divisor", "groups", "op")

    def __init__(self, op: ReduceOp, divisor: int, groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> None:
        self.op, self.divisor, self.groups = op, divisor, groups
        self.contributions = len(groups[0][0]) if groups else 1


@cached(4096, cleared_by=forget_with_residences)
def _work(source: Layout, target: Layout) -> _ReducingWork:
    here, there, mesh = holding(source), holding(target), source.mesh
    dropped = [axis for axis in source.pending_axes if axis not in target.pending_axes]
    reduced = {mesh.index_of[axis] for axis in dropped}
    groups: dict[tuple[int, ...], list[int]] = {}
    for slot in here.residence.owned:
        coords = mesh.coords(slot)
        groups.setdefault(tuple(c for i, c in enumerate(coords) if i not in reduced), []).append(slot)
    op, divisor = combination(source, dropped)
    pieces = tuple(
        (tuple(here.piece_of[slot] for slot in slots), tuple(there.piece_of[slot] for slot in slots))
        for slots in groups.values()
    )
    return _ReducingWork(op, divisor, pieces)
