"""Running a rearrangement: strided copies written straight into the target, within a process and between processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..planning.rearrangement import Rearrangement
from ..sharding.geometry import box_shape
from .holding import Pieces, holding
from .host_pool import pooled_empty
from .processes.mesh_processes import is_elsewhere, spans
from .processes.steps import rearrange as among_processes
from .spans import COMMUNICATION, spanned

__all__ = ["rearrange"]


@spanned(COMMUNICATION, "rearrangement")
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
    if any(piece.is_meta for pieces in sources for piece in pieces):
        return _without_memory(plan, dtype)
    targets = into if into is not None else _new(plan, dtype, fill)
    mesh = plan.target.layout.mesh
    if is_elsewhere(mesh):
        return ()
    if spans(mesh):
        among_processes.rearrange(sources, plan, targets, dtype, op)
    else:
        _copy(sources, plan, targets)
    return tuple(piece.flip(plan.flips) for piece in targets) if plan.flips else targets


def _without_memory(plan: Rearrangement, dtype: torch.dtype) -> Pieces:
    """The pieces of a result on the meta device, where nothing moves."""
    boxes = map(plan.target.box, holding(plan.target.layout).coords)
    return tuple(torch.empty(box_shape(box), dtype=dtype, device="meta") for box in boxes)


def _new(plan: Rearrangement, dtype: torch.dtype, fill: float | None) -> Pieces:
    there = holding(plan.target.layout)
    result = []
    for coords, device in zip(there.coords, there.devices, strict=True):
        shape = [stop - start for start, stop in plan.target.box(coords)]
        if fill is None:
            result.append(pooled_empty(shape, dtype, device))
        else:
            result.append(torch.full(shape, fill, dtype=dtype, device=device))
    return tuple(result)


def _copy(sources: Sequence[Pieces], plan: Rearrangement, targets: Pieces) -> None:
    held = [holding(side.layout) for side in plan.sources]
    for slot, out in zip(holding(plan.target.layout).slots, targets, strict=True):
        for copy in plan.copies(slot):
            piece = sources[copy.source][held[copy.source].piece_of[copy.source_slot]]
            out[copy.target_part].copy_(piece[copy.source_part])
