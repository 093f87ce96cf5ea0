"""One process, many devices: movements are box copies written straight into the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..caches import cached
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from .all_reducing import all_reduced, is_small
from .holding import Pieces, holding, nbytes, slices
from .machine import check_there, forget_with_residences
from .memory.accelerator import brought, settle
from .memory.host_memory import relieve_pressure
from .memory.host_pool import pooled_empty
from .memory.lazy_copy import lazy_clone
from .memory.memory_limit import planned
from .on_paper import moving
from .reduction import combination, neutral, reduce_into
from .steps_in_process import run_step

__all__ = ["fill_pending", "is_relabeled", "move", "placed", "relabeled", "scatter", "without_memory"]


def placed(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device; one without memory stays without."""
    return brought(x, device)


def move(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    """The pieces of the same tensor in another layout. Both meshes belong to this process."""
    here, there = holding(source), holding(target)
    if is_relabeled(source, target):
        return relabeled(pieces, source, target, shape)
    if not pieces and not there.count:
        return ()
    if here.unified and not source.pending:
        parts = scatter(pieces[0], target.resolved)
        return move(parts, target.resolved, target, shape) if target.pending else parts
    if here.unified:
        return move(relabeled(pieces, source, source.resolved, shape), source.resolved, target, shape)
    if there.unified and (target.pending or target.split_axes):
        # A tensor in one memory is stored whole there, whatever its layout.
        replicated = Layout.replicated(target.mesh, target.rank)
        return relabeled(move(pieces, source, replicated, shape), replicated, target, shape)
    if source.pending and target is source.resolved and is_small(pieces, source):
        reduced = all_reduced(pieces, source, target, tuple(shape))
        if reduced is not None:
            return reduced
    dtype = pieces[0].dtype
    for step in planned(source, target, tuple(shape), dtype.itemsize).steps:
        pieces = without_memory(step.target, shape, dtype) if pieces[0].is_meta else run_step(step, pieces)
    return pieces


def is_relabeled(source: Layout, target: Layout) -> bool:
    """Whether a tensor stays where it is, because all devices of both layouts share one memory of this process."""
    here, there = holding(source), holding(target)
    return here.unified and there.unified and here.residence.memories[0] == there.residence.memories[0]


def without_memory(layout: Layout, shape: Sequence[int], dtype: torch.dtype) -> Pieces:
    """The pieces of a tensor on the meta device, which move nowhere."""
    with moving(layout.mesh):
        return holding(layout).empty(shape, dtype, "meta")


def scatter(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole; nothing is pending."""
    there = holding(layout)
    shape = tuple(whole.shape)
    if not whole.is_meta:
        check_there(layout.mesh)
    if whole.is_meta or there.residence.on_paper:
        return without_memory(layout, shape, whole.dtype)
    boxes = [whole[slices(there.box(i, shape))] for i in range(there.count)]
    there_now = [brought(box, device, settled=False) for box, device in zip(boxes, there.devices, strict=True)]
    settle(whole, there.devices)
    return tuple(lazy_clone(part.contiguous()) for part in there_now)


def relabeled(pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int]) -> Pieces:
    """The pieces of a tensor that stays where it is, as `is_relabeled` says: what is pending is reduced there."""
    if source.pending and (source.pending != target.pending or source.mesh != target.mesh):
        # Axes of two meshes are not one axis because they have one name.
        left = [item for item in source.pending if item in target.pending and source.mesh == target.mesh]
        kept = source.with_pending(left) if left and tuple(left) == target.pending else source.resolved
        pieces = _reduced_whole(pieces, source, kept, shape)
        source = kept
    else:
        pieces = tuple(map(lazy_clone, pieces))
    if target.pending and not source.pending:
        return fill_pending(pieces[0], target)
    return pieces


def _reduced_whole(pieces: Pieces, source: Layout, kept: Layout, shape: Sequence[int]) -> Pieces:
    """Whole contributions, reduced over the axes that are pending in `source` and no longer in `kept`."""
    op, divisor, groups = _whole_groups(source, kept)
    first = pieces[0]
    relieve_pressure(len(groups) * nbytes(shape, first.dtype))
    outs = [pooled_empty(shape, first.dtype, first.device) for _ in groups]
    return tuple([reduce_into(out, op, [pieces[i] for i in of], divisor) for out, of in zip(outs, groups, strict=True)])


@cached(4096, cleared_by=forget_with_residences)
def _whole_groups(source: Layout, kept: Layout) -> tuple[ReduceOp, int, tuple[tuple[int, ...], ...]]:
    """How whole contributions are combined, and which of them make each piece."""
    here, there = holding(source), holding(kept)
    groups: dict[int, list[int]] = {}
    for piece, slot in enumerate(here.slots):
        groups.setdefault(there.piece_of[slot], []).append(piece)
    op, divisor = combination(source, [axis for axis in source.pending_axes if axis not in kept.pending_axes])
    return op, divisor, tuple(tuple(groups[k]) for k in range(len(groups)))


def fill_pending(whole: torch.Tensor, target: Layout) -> Pieces:
    """Contributions that reduce to `whole`: it, and what changes nothing.

    A mean has no neutral element, but every contribution may be the value itself; so may it for max and min.
    """
    count = holding(target).count
    kinds = {op for _, op in target.pending}
    if kinds <= {ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN}:
        return (whole,) * count
    if len(kinds) > 1:
        raise ValueError(
            f"cannot spread one value over pending reductions of different kinds: {dict(target.pending)!r}"
        )
    nothing = torch.full((), neutral(kinds.pop(), whole.dtype), dtype=whole.dtype, device=whole.device)
    return (whole, *[nothing.expand(whole.shape)] * (count - 1))
