"""Running a rearrangement in one process: strided copies written straight into the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..planning.rearrangement import Rearrangement
from .holding import Pieces, holding

__all__ = ["can_rearrange", "rearrange"]


def can_rearrange(plan_mesh_owned: int, devices: int) -> bool:
    """Whether this process holds all of a mesh, so can copy between any two of its devices."""
    return plan_mesh_owned == devices


def rearrange(
    sources: Sequence[Pieces], plan: Rearrangement, dtype: torch.dtype, fill: float | int | bool | None = None
) -> Pieces:
    """The pieces of the result; `fill` is what stands where no part lands (None: parts cover everything)."""
    there = holding(plan.target.layout)
    held = [holding(side.layout) for side in plan.sources]
    result = []
    for piece in range(there.count):
        shape = [stop - start for start, stop in plan.target.box(there.coords[piece])]
        device = there.devices[piece]
        if fill is None:
            out = torch.empty(shape, dtype=dtype, device=device)
        else:
            out = torch.full(shape, fill, dtype=dtype, device=device)
        for copy in plan.copies(there.slots[piece]):
            part = sources[copy.source][held[copy.source].piece_of[copy.source_slot]][copy.source_part]
            out[copy.target_part].copy_(part.flip(copy.flipped) if copy.flipped else part)
        result.append(out)
    return tuple(result)
