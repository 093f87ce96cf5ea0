"""The one entrance to execution: which runtime moves what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp
from . import in_process
from .copies import permutations
from .holding import Pieces, holding
from .machine import residence
from .memory.host_pool import pooled_empty
from .memory.lazy_copy import lazy_clone
from .memory.memory_limit import in_parts, memory_limit, planned
from .on_paper import Promise, promised
from .processes import movement, world
from .processes.agreement.same_tensor import check_same
from .processes.mesh_processes import is_elsewhere, leaves_out, owners_of, spans, wire_device
from .processes.steps.permute import Route
from .processes.transport.async_ops import Arriving, issue
from .spans import COMMUNICATION, spanned
from .traced import Communication, Size, communicated, is_open, is_traced

__all__ = [
    "Arriving",
    "Route",
    "begin",
    "check_same",
    "connect",
    "goes_on_beside",
    "mail",
    "move",
    "permute",
    "scatter",
    "spread",
    "whole",
]


@spanned(COMMUNICATION, "movement")
def move(
    pieces: Pieces, source: Layout, target: Layout, shape: Sequence[int], dtype: torch.dtype, op: str = "a movement"
) -> Pieces:
    """The pieces of the same tensor in another layout; `op` is what the user called, for errors."""
    on_paper = bool(pieces) and pieces[0].is_meta
    if not on_paper and in_process.is_relabeled(source, target):
        return in_process.move(pieces, source, target, shape)
    if memory_limit() is not None and not on_paper:
        plan = planned(source, target, tuple(shape), dtype.itemsize)
        if plan.parts is not None:
            return in_parts(plan, pieces, dtype, lambda part, size: move(part, source, target, size, dtype, op))
    if world.current().count > 1:
        if on_paper:
            return in_process.without_memory(target, shape, dtype)
        if spans(source.mesh, target.mesh):
            if is_traced() and not is_elsewhere(source.mesh, target.mesh):
                return _begun(pieces, source, target) or communicated(Moving(source, target, dtype, op), pieces, shape)
            return movement.move(pieces, source, target, tuple(shape), dtype, op)
        if is_elsewhere(source.mesh, target.mesh):
            return ()
    if _is_open(pieces, shape) and not (holding(source).unified and holding(target).unified):
        return communicated(Moving(source, target, dtype, op), pieces, shape)  # steps are of sizes that are known
    return in_process.move(pieces, source, target, shape)


def _is_open(pieces: Pieces, shape: Sequence[int]) -> bool:
    """Whether a compiler leaves sizes open of a tensor or, where it has settled these, of its pieces."""
    return is_open(shape) or (is_traced() and any(is_open(piece.shape) for piece in pieces))


@final
@dataclass(frozen=True, slots=True)
class Moving(Communication):
    """A movement, in a program that is traced."""

    source: Layout
    target: Layout
    dtype: torch.dtype
    op: str

    def made(self, sizes: Size) -> list[tuple[Size, torch.device]]:
        """The pieces of the target."""
        return _stored(self.target, sizes)

    def run(self, pieces: Pieces, sizes: Size) -> Pieces:
        """The pieces of the same tensor in the target's layout."""
        return move(pieces, self.source, self.target, sizes, self.dtype, self.op)


def _begun(pieces: Pieces, source: Layout, target: Layout) -> Pieces | None:
    """Contributions to sums, made of what is stored: nothing travels, and a compiler may fuse it with what comes next.

    None: something travels, or another reduction begins.
    """
    kinds = {kind for _, kind in target.pending}
    if source is not target.resolved or kinds != {ReduceOp.SUM}:
        return None
    here, there = holding(source), holding(target)
    result = []
    for slot in there.slots:
        kept = pieces[here.piece_of[slot]]
        keeps = not any(target.mesh.device_coord(slot, axis) for axis in target.pending_axes)
        result.append(kept.clone() if keeps else torch.zeros_like(kept))
    return tuple(result)


def _stored(layout: Layout, shape: Size) -> list[tuple[Size, torch.device]]:
    there = holding(layout)
    return list(zip(there.shapes(shape), there.devices, strict=True))


def begin(action: Callable[[Pieces], Pieces], pieces: Pieces, *meshes: DeviceMesh) -> Arriving | Promise | Pieces:
    """Begins what would otherwise be waited for; what needs no other process is done at once.

    What is sent is what the pieces hold now, even if they are written to before it has gone.
    """
    if residence(meshes[0]).on_paper:
        return promised(lambda: action(pieces))
    if not spans(*meshes) or is_elsewhere(*meshes) or is_traced():
        return action(pieces)
    wire = wire_device(*meshes)
    # A lazy copy that is written to on a stream of its own would not wait for the others.
    copy = torch.clone if wire.type == "cuda" else lazy_clone
    kept = tuple(copy(piece) for piece in pieces)
    return issue(lambda: action(kept), kept, wire)


def goes_on_beside(x: torch.Tensor, *meshes: DeviceMesh) -> bool:
    """Whether what is begun with a tensor between these meshes is carried out beside the program, by a thread and through host memory.

    On paper each device is a process.
    """
    if residence(meshes[0]).on_paper:
        return all(mesh.devices[0].is_host and not mesh.is_single for mesh in meshes)
    if x.is_meta or not spans(*meshes) or is_elsewhere(*meshes) or is_traced():
        return False
    return wire_device(*meshes).type == "cpu"


def connect(pairs: Iterable[tuple[DeviceMesh, DeviceMesh]], purposes: Sequence[str]) -> None:
    """Lets the processes of each pair of meshes meet that are going to `mail` between them; all come in the same order."""
    meetings = {(owners_of(*pair), wire_device(*pair)) for pair in pairs if spans(*pair)}
    for processes, wire in sorted(meetings, key=str):
        for purpose in purposes:
            movement.connect(processes, wire, purpose)


@spanned(COMMUNICATION, "movement")
def mail(
    pieces: Pieces,
    source: Layout,
    target: Layout,
    shape: Sequence[int],
    dtype: torch.dtype,
    op: str,
    purpose: str,
    tag: int,
) -> Arriving | Promise | Pieces:
    """Begins to move a tensor to another mesh by messages that wait for no others; each is known by its tag.

    Unlike what `begin` begins, each process does it when it comes to it. Nothing may be pending.
    """
    if is_elsewhere(source.mesh, target.mesh):
        return ()
    if residence(source.mesh).on_paper:
        return promised(lambda: in_process.move(pieces, source, target, shape))
    if not spans(source.mesh, target.mesh):
        return in_process.move(pieces, source, target, shape)
    return movement.mail(pieces, source, target, tuple(shape), dtype, op, purpose, tag)


@spanned(COMMUNICATION, "gathering")
def whole(pieces: Pieces, layout: Layout, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A value of which every device has the whole, in every process: those without a device of the mesh included."""
    if leaves_out(layout.mesh) and is_traced():
        (value,) = communicated(GivingToAll(layout, dtype), pieces, shape)
        return value
    return movement.whole(pieces, layout, tuple(shape), dtype)


@final
@dataclass(frozen=True, slots=True)
class GivingToAll(Communication):
    """Giving a value to processes that own no device of its mesh, in a program that is traced."""

    layout: Layout
    dtype: torch.dtype

    def made(self, sizes: Size) -> list[tuple[Size, torch.device]]:
        """The whole."""
        return [(sizes, holding(self.layout).residence.device)]

    def run(self, pieces: Pieces, sizes: Size) -> Pieces:
        """The whole."""
        return (whole(pieces, self.layout, sizes, self.dtype),)


def spread(whole: torch.Tensor, layout: Layout) -> Pieces:
    """Contributions in unified memory that reduce to `whole`."""
    return in_process.fill_pending(whole, layout)


@spanned(COMMUNICATION, "scattering")
def scatter(whole: torch.Tensor, layout: Layout) -> Pieces:
    """The pieces of a value that this process has whole, in separate memories."""
    pieces = in_process.scatter(whole, layout.resolved)
    return move(pieces, layout.resolved, layout, whole.shape, whole.dtype) if layout.pending else pieces


@spanned(COMMUNICATION, "permutation")
def permute(pieces: Pieces, layout: Layout, shape: Sequence[int], route: Route, dtype: torch.dtype) -> Pieces:
    """The pieces after shards have changed places."""
    if pieces and pieces[0].is_meta:
        return in_process.without_memory(layout, shape, dtype)
    if spans(layout.mesh):
        if is_traced() and not is_elsewhere(layout.mesh):
            return communicated(Permuting(layout, route, dtype), pieces, shape)
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


@final
@dataclass(frozen=True, slots=True)
class Permuting(Communication):
    """Shards that change places, in a program that is traced."""

    layout: Layout
    route: Route
    dtype: torch.dtype

    def made(self, sizes: Size) -> list[tuple[Size, torch.device]]:
        """As many pieces as before."""
        return _stored(self.layout, sizes)

    def run(self, pieces: Pieces, sizes: Size) -> Pieces:
        """The pieces after shards have changed places."""
        return permute(pieces, self.layout, sizes, self.route, self.dtype)


def _permuted_whole(pieces: Pieces, layout: Layout, shape: tuple[int, ...], route: Route) -> Pieces:
    """Whole values: a shard is a box of them, and those that nothing is sent to become zeros."""
    result = tuple(torch.zeros_like(p) if None in route else pooled_empty(p.shape, p.dtype, p.device) for p in pieces)
    for at, each in permutations(layout, shape, route):
        result[at][each.target].copy_(pieces[each.origin][each.source])
    return result
