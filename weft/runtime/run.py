"""The one entrance to execution: which runtime moves what."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..sharding.geometry import box_at
from ..sharding.layout import Layout
from . import in_process
from .holding import Pieces, holding, slices
from .process_group import execution
from .process_group.moving import Route

__all__ = ["Route", "move", "permute", "scatter", "spread", "whole"]


def move(
    pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int], dtype: torch.dtype, op: str = "a movement"
) -> Pieces:
    """The pieces of the same tensor in another layout; `op` is what the user called, for errors."""
    if execution.spans(source.mesh, target.mesh):
        return execution.move(pieces, source, target, tuple(shape), dtype, op)
    if execution.is_elsewhere(source.mesh, target.mesh):
        return ()
    return in_process.move(pieces, source, target, shape)


def whole(pieces: Pieces, layout: Layout, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A value of which every device has the whole, in every process: those without a device of the mesh included."""
    return execution.whole(pieces, layout, tuple(shape), dtype)


def spread(whole: torch.Tensor, layout: Layout) -> Pieces:
    """Contributions in unified memory that reduce to `whole`."""
    return in_process.fill_pending(whole, layout)


def scatter(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole, in separate memories."""
    if execution.spans(layout.mesh) and layout.pending:
        return move(in_process.scatter(whole, layout.resolved), layout.resolved, layout, whole.shape, whole.dtype)
    return in_process.scatter(whole, layout)


def permute(pieces: Pieces, layout: Layout, shape: Sequence[int], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    if execution.spans(layout.mesh):
        return execution.permute(pieces, layout, tuple(shape), route, dtype)
    here = holding(layout)
    shape = tuple(shape)
    result: list[torch.Tensor | None] = [torch.zeros_like(piece) if here.unified else None for piece in pieces]
    done: set[object] = set()
    for slot in here.residence.owned:
        source = route[slot]
        at = here.piece_of[slot]
        if not here.unified:
            if result[at] is None:
                shard = (
                    pieces[at].new_zeros(here.piece_shape(at, shape))
                    if source is None
                    else here.shard(pieces, shape, source)
                )
                result[at] = in_process.lazy_clone(shard.to(here.devices[at]))
            continue
        where = box_at(layout, shape, layout.mesh.coords(slot))
        if source is not None and (at, where) not in done:
            done.add((at, where))
            piece = result[at]
            assert piece is not None
            piece[slices(where)].copy_(here.shard(pieces, shape, source))
    return tuple(piece for piece in result if piece is not None)
