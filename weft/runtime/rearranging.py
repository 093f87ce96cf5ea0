"""Running a rearrangement: strided copies written straight into the target, within a process and between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import final

import torch

from ..caches import cached
from ..planning.rearrangement import OpenRearrangement, Rearrangement, Side
from ..sharding.geometry import box_shape
from ..sharding.layout import Layout
from .holding import Pieces, holding
from .machine import forget_with_residences
from .memory.host_pool import pooled_empty
from .on_paper import moving
from .processes.mesh_processes import is_elsewhere, spans
from .processes.steps import rearrange as among_processes
from .spans import COMMUNICATION, spanned
from .traced import Communication, Size, communicated, is_traced

__all__ = ["OpenRearranging", "rearrange", "seen", "stored"]

Index = tuple[slice, ...]


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
    mesh = plan.target.layout.mesh
    if is_elsewhere(mesh):
        return ()
    if spans(mesh) and is_traced():
        given = [piece for pieces in sources for piece in pieces]
        return communicated(Rearranging(plan, dtype, fill, into is not None, op), (*given, *(into or ())), ())
    targets = into if into is not None else _new(plan, dtype, fill)
    if spans(mesh):
        among_processes.rearrange(sources, plan, targets, dtype, op)
    else:
        _copy(sources, plan, targets)
    return tuple(piece.flip(plan.flips) for piece in targets) if plan.flips else targets


def _without_memory(plan: Rearrangement, dtype: torch.dtype) -> Pieces:
    """The pieces of a result on the meta device, where nothing moves."""
    with moving(plan.target.layout.mesh):
        return tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, _ in _shapes(plan))


@final
@dataclass(frozen=True, slots=True)
class Rearranging(Communication):
    """A rearrangement between processes, in a program that is traced. Its plan is for one size."""

    plan: Rearrangement
    dtype: torch.dtype
    fill: float | None
    is_into: bool
    """Whether the last pieces are those that the parts are written into."""
    op: str

    def made(self, sizes: Size) -> list[tuple[Size, torch.device]]:  # noqa: ARG002 - as all communications
        """The pieces of the target."""
        return _shapes(self.plan)

    def run(self, pieces: Pieces, sizes: Size) -> Pieces:  # noqa: ARG002 - as all communications
        """What the sources, one after another, are rearranged to."""
        sources, at = [], 0
        for side in self.plan.sources:
            count = holding(side.layout).count
            sources.append(pieces[at : at + count])
            at += count
        into = tuple(piece.clone() for piece in pieces[at:]) if self.is_into else None
        return rearrange(sources, self.plan, self.dtype, fill=self.fill, into=into, op=self.op)


@final
@dataclass(frozen=True, slots=True)
class OpenRearranging(Communication):
    """A rearrangement in a program that is traced, which is planned when the program runs and sizes are known."""

    plan: OpenRearrangement
    sources: tuple[Layout, ...]
    target: Layout
    dtype: torch.dtype
    fill: float | None
    is_into: bool
    """As in `Rearranging`."""
    op: str

    def made(self, sizes: Size) -> list[tuple[Size, torch.device]]:
        """The pieces of the result."""
        there, shape = holding(self.target), self._shapes(sizes)[-1]
        return [(there.piece_shape(k, shape), device) for k, device in enumerate(there.devices)]

    def run(self, pieces: Pieces, sizes: Size) -> Pieces:
        """What they are rearranged to."""
        plan = self.plan.known(sizes)
        *shapes, shape = self._shapes(sizes)
        left = iter(pieces)
        given = [
            seen(tuple(islice(left, holding(layout).count)), layout, each, side)
            for layout, each, side in zip(self.sources, shapes, plan.sources, strict=True)
        ]
        into = tuple(piece.clone() for piece in left) if self.is_into else None
        made = rearrange(given, plan, self.dtype, fill=self.fill, into=into, op=self.op)
        return stored(made, plan, self.target, shape)

    def _shapes(self, sizes: Size) -> list[Size]:
        """Of the sources, then of the result."""
        left = iter(sizes)
        return [tuple(islice(left, layout.rank)) for layout in (*self.sources, self.target)]


def seen(pieces: Pieces, layout: Layout, shape: Size, side: Side) -> Pieces:
    """The pieces of a tensor in the dims in which a plan sees them."""
    if side.shape == shape:
        return pieces
    return tuple(
        piece.reshape(box_shape(side.box(at))) for piece, at in zip(pieces, holding(layout).coords, strict=True)
    )


def stored(pieces: Pieces, plan: Rearrangement, layout: Layout, shape: Size) -> Pieces:
    """What a plan has made, in the dims of the result."""
    if plan.target.shape == shape:
        return pieces
    there = holding(layout)
    return tuple(piece.view(there.piece_shape(k, shape)) for k, piece in enumerate(pieces))


def _shapes(plan: Rearrangement) -> list[tuple[Size, torch.device]]:
    there = holding(plan.target.layout)
    boxes = [plan.target.box(coords) for coords in there.coords]
    return [(box_shape(box), device) for box, device in zip(boxes, there.devices, strict=True)]


def _new(plan: Rearrangement, dtype: torch.dtype, fill: float | None) -> Pieces:
    result = []
    for shape, device in _shapes(plan):
        if fill is None:
            result.append(pooled_empty(shape, dtype, device))
        else:
            result.append(torch.full(shape, fill, dtype=dtype, device=device))
    return tuple(result)


def _copy(sources: Sequence[Pieces], plan: Rearrangement, targets: Pieces) -> None:
    for out, copies in zip(targets, _copies_here(plan), strict=True):
        for origin, piece, source_part, target_part in copies:
            out[target_part].copy_(sources[origin][piece][source_part])


@cached(4096, cleared_by=forget_with_residences)
def _copies_here(plan: Rearrangement) -> tuple[tuple[tuple[int, int, Index, Index], ...], ...]:
    """For each piece of the result what is copied to it: of which source, from which of its pieces, and the parts of both."""
    held = [holding(side.layout) for side in plan.sources]
    return tuple(
        tuple(
            (copy.source, held[copy.source].piece_of[copy.source_slot], copy.source_part, copy.target_part)
            for copy in plan.copies(slot)
        )
        for slot in holding(plan.target.layout).slots
    )
