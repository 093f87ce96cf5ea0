"""`Room`: where the elements of a new tensor go, worked out once for all states that are alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import final

import torch

from ..caches import cached
from ..engine.form import Form, form_of
from ..engine.sharded import ShardedTensor, made
from ..engine.value import value_of
from ..planning.states import StateEntry
from ..runtime.holding import holding
from ..runtime.machine import forget_with_residences, residence
from ..runtime.memory.host_pool import pooled_empty
from ..runtime.processes.mesh_processes import spans
from ..runtime.processes.passing import Lot
from ..runtime.strides import dense_strides, row_major
from .planning import PlannedState
from .wanted import Wanted

__all__ = ["Room", "rooms"]

_ITEMSIZE = attrgetter("itemsize")


@final
@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece that this process stores; without strides, row by row."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: torch.device


@final
@dataclass(frozen=True, slots=True)
class Room:
    """What is known of a new tensor before anything moves."""

    name: str
    want: Wanted
    form: Form
    pieces: tuple[_Piece, ...]
    lots: tuple[Lot, ...]
    """Its passages, one from each tensor that it is made of."""
    moves_alone: bool
    """Whether it need not be packed with others: something is pending, or it stays in one process."""

    @property
    def on_paper(self) -> bool:
        """Whether it has no memory."""
        return self.form.device.type == "meta"

    @property
    def nbytes(self) -> int:
        """The bytes of its pieces in this process."""
        return sum(math.prod(piece.shape) for piece in self.pieces) * self.form.dtype.itemsize

    def made(self) -> ShardedTensor:
        """The new tensor, with any values in it."""
        dtype = self.form.dtype
        pieces = [
            pooled_empty(piece.shape, dtype, piece.device)
            if piece.strides is None
            else torch.empty_strided(piece.shape, piece.strides, dtype=dtype, device=piece.device)
            for piece in self.pieces
        ]
        return made(self.form, value_of(tuple(pieces)), asked=self.want.mapping)


@cached(64, cleared_by=forget_with_residences)
def rooms(task: PlannedState, forms: tuple[Form, ...], *, are_there: bool) -> tuple[Room, ...]:
    """The room of each entry of a plan, whose sources have these forms; `are_there`: tensors that exist are written to."""
    found: list[Room] = []
    number = 0
    given = iter(forms)
    for entry in task.plan.entries:
        sources = [next(given) for _ in entry.sources]
        found.append(_room(entry, task.wanted[entry.name], sources, number, are_there))
        number += len(entry.passages)
    return tuple(found)


def _room(entry: StateEntry, want: Wanted, sources: list[Form], number: int, are_there: bool) -> Room:
    layout, shape, first = want.layout, entry.shape, sources[0]
    is_ordinary = len(sources) > 1 or first.strides == row_major(first.shape)
    strides = row_major(shape) if is_ordinary else dense_strides(shape, first.strides)
    here, on_paper = holding(layout), first.device.type == "meta"
    pieces = []
    for piece, home in enumerate(here.devices):
        own = here.piece_shape(piece, shape)
        order = None if is_ordinary else dense_strides(own, strides)
        pieces.append(_Piece(own, order, first.device if on_paper else home))
    device = pieces[0].device if pieces else residence(layout.mesh).device
    lots = [
        Lot(at, min(want.dtype, source.dtype, key=_ITEMSIZE))
        for at, (source, _) in enumerate(zip(sources, entry.passages, strict=False), number)
    ]
    stays_here = not spans(first.layout.mesh, layout.mesh) and len(entry.passages) == 1 and entry.passages[0].is_whole
    return Room(
        entry.name,
        want,
        form_of(layout, shape, strides, want.dtype, device),
        tuple(pieces),
        tuple(lots),
        entry.plan is not None or (stays_here and not are_there),
    )
