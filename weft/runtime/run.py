"""The one entrance to execution: which runtime moves what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from . import in_process
from .copies import permutations
from .holding import Pieces, holding
from .host_pool import pooled_empty
from .lazy_copy import lazy_clone
from .processes import movement, world
from .processes.agreement.same_tensor import check_same
from .processes.mesh_processes import is_elsewhere, spans, wire_device
from .processes.steps.permute import Route
from .processes.transport.async_ops import Arriving, issue
from .spans import COMMUNICATION, spanned

__all__ = ["Arriving", "Route", "begin", "check_same", "move", "permute", "scatter", "spread", "whole"]


@spanned(COMMUNICATION, "movement")
def move(
    pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int], dtype: torch.dtype, op: str = "a movement"
) -> Pieces:
    """The pieces of the same tensor in another layout; `op` is what the user called, for errors."""
    if world.current().count > 1:
        if pieces and pieces[0].is_meta:
            return in_process.without_memory(target, shape, dtype)
        if spans(source.mesh, target.mesh):
            return movement.move(pieces, source, target, tuple(shape), dtype, op)
        if is_elsewhere(source.mesh, target.mesh):
            return ()
    return in_process.move(pieces, source, target, shape)


def begin(action: Callable[[Pieces], Pieces], pieces: Pieces, *meshes: DeviceMesh) -> Arriving | Pieces:
    """Begins what would otherwise be waited for; what needs no other process is done at once.

    What is sent is what the pieces hold now, even if they are written to before it has gone.
    """
    if not spans(*meshes) or is_elsewhere(*meshes):
        return action(pieces)
    wire = wire_device(*meshes)
    # A lazy copy that is written to on a stream of its own would not wait for the others.
    copy = torch.clone if wire.type == "cuda" else lazy_clone
    kept = tuple(copy(piece) for piece in pieces)
    return issue(lambda: action(kept), kept, wire)


@spanned(COMMUNICATION, "gathering")
def whole(pieces: Pieces, layout: Layout, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A value of which every device has the whole, in every process: those without a device of the mesh included."""
    return movement.whole(pieces, layout, tuple(shape), dtype)


def spread(whole: torch.Tensor, layout: Layout) -> Pieces:
    """Contributions in unified memory that reduce to `whole`."""
    return in_process.fill_pending(whole, layout)


@spanned(COMMUNICATION, "scattering")
def scatter(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole, in separate memories."""
    if spans(layout.mesh) and layout.pending:
        return move(in_process.scatter(whole, layout.resolved), layout.resolved, layout, whole.shape, whole.dtype)
    return in_process.scatter(whole, layout)


@spanned(COMMUNICATION, "permutation")
def permute(pieces: Pieces, layout: Layout, shape: Sequence[int], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    if spans(layout.mesh):
        return movement.permute(pieces, layout, tuple(shape), route, dtype)
    here = holding(layout)
    if here.unified:
        return _permuted_whole(pieces, layout, tuple(shape), route)
    result: dict[int, torch.Tensor] = {}
    for slot in here.residence.owned:
        source, at = route[slot], here.piece_of[slot]
        if at not in result:
            if source is None:
                shard = pieces[at].new_zeros(here.piece_shape(at, shape))
            else:
                shard = here.shard(pieces, shape, source)
            result[at] = lazy_clone(in_process.placed(shard, here.devices[at]))
    return tuple(result[at] for at in range(len(pieces)))


def _permuted_whole(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route) -> Pieces:
    """Whole values: a shard is a box of them, and those that nothing is sent to become zeros."""
    result = tuple(torch.zeros_like(p) if None in route else pooled_empty(p.shape, p.dtype, p.device) for p in pieces)
    for at, each in permutations(layout, shape, route):
        result[at][each.target].copy_(pieces[each.origin][each.source])
    return result
