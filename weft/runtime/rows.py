"""Rows that change devices one by one: how many go where is known only at run time, and no more is sent than these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..sharding.geometry import resized
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .holding import Pieces, holding
from .processes.mesh_processes import is_elsewhere, spans
from .processes.steps.rows import exchange_rows, near
from .route import Route, line_of

__all__ = ["send_rows"]


def send_rows(
    pieces: Pieces, layout: Layout, shape: Sequence[int], dim: int, route: Route, dtype: torch.dtype, op: str
) -> Pieces:
    """The pieces after the rows, which stand along a dim, have been sent; `op` is what the user called, for errors."""
    if is_elsewhere(layout.mesh):
        return ()
    here = holding(layout)
    arriving: Mapping[tuple[Slot, int], torch.Tensor] = {}
    if spans(layout.mesh):
        arriving = exchange_rows(pieces, layout, tuple(shape), dim, route, dtype, op)
    result = []
    for k, (slot, device) in enumerate(zip(here.slots, here.devices, strict=True)):
        line = line_of(layout, dim, slot)
        number = line.index(slot)
        parts = []
        for sender, source in enumerate(line):
            if (slot, sender) in arriving:
                parts.append(arriving[slot, sender].to(device))
            elif route.counts[sender][number]:
                parts.append(route.sent(pieces[near(layout, source)], dim, sender, number).to(device))
        if len(parts) > 1:
            result.append(torch.cat(parts, dim).index_select(dim, route.order(number).to(device)))
        else:
            none = resized(here.piece_shape(k, shape), dim, 0)
            result.append(parts[0] if parts else torch.empty(none, dtype=dtype, device=device))
    return tuple(result)
