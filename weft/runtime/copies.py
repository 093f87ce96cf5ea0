"""Which part of which piece is written where, for one movement between layouts; worked out once, then looked up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

from ..caches import cached
from ..planning import Exchange
from ..planning.boxes.transfers import Transfer, receives
from ..sharding.geometry import box_at, box_shape, within
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .holding import Holding, holding, slices
from .machine import forget_with_residences

__all__ = ["Copy", "Slices", "Writing", "contributions", "exchanges", "permutations", "writings"]

Slices = tuple[slice, ...]


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """A part of a piece of the source, and where in a piece of the target it goes."""

    origin: int
    source: Slices
    target: Slices


@final
@dataclass(frozen=True, slots=True)
class Writing:
    """One piece of the target: its shape, and the copies that fill it."""

    shape: tuple[int, ...]
    copies: tuple[Copy, ...]


@cached(4096, cleared_by=forget_with_residences)
def writings(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[Writing, ...]:
    """For each piece of the target, what is copied into it.

    >>> from weft.sharding import make_mesh
    >>> mesh = make_mesh({"d": 2})
    >>> [w.shape for w in writings(Layout(mesh, (("d",), ())), Layout(mesh, ((), ("d",))), (4, 4))]
    [(4, 4)]
    """
    here, there = holding(source), holding(target)
    return tuple(
        _writing(here, there, piece, shape, receives(source, target, shape, slot))
        for piece, slot in enumerate(there.slots)
    )


@cached(4096, cleared_by=forget_with_residences)
def exchanges(step: Exchange) -> tuple[Writing, ...]:
    """The same for an exchange, which says itself who receives what."""
    here, there = holding(step.source), holding(step.target)
    return tuple(
        _writing(here, there, piece, step.shape, step.receives(slot)) for piece, slot in enumerate(there.slots)
    )


def _writing(
    here: Holding, there: Holding, piece: int, shape: tuple[int, ...], transfers: Iterable[Transfer]
) -> Writing:
    where = there.box(piece, shape)
    return Writing(
        box_shape(where), tuple(_copy(here, here.piece_of[t.source_slot], t, shape, where) for t in transfers)
    )


def _copy(
    here: Holding, origin: int, transfer: Transfer, shape: tuple[int, ...], where: tuple[tuple[int, int], ...]
) -> Copy:
    return Copy(origin, slices(within(transfer.box, here.box(origin, shape))), slices(within(transfer.box, where)))


@cached(4096, cleared_by=forget_with_residences)
def contributions(
    source: Layout, target: Layout, shape: tuple[int, ...], dropped: tuple[str, ...]
) -> tuple[tuple[Writing, ...] | int, ...]:
    """For each piece of the target, what each coordinate of the dropped axes contributes to it.

    Where an earlier piece has the same value, its number.
    """
    here, there = holding(source), holding(target)
    mesh = target.mesh
    known: dict[tuple[object, ...], int] = {}
    found: list[tuple[Writing, ...] | int] = []
    for piece, slot in enumerate(there.slots):
        where = there.box(piece, shape)
        same = known.setdefault((where, *(mesh.coords(slot)[mesh.index_of[a]] for a in target.pending_axes)), piece)
        if same != piece:
            found.append(same)
            continue
        transfers = receives(source.resolved, target.resolved, shape, slot)
        each = []
        for at in product(*(range(source.mesh.axis_size(axis)) for axis in dropped)):
            origins = [here.piece_of[_moved(source, t.source_slot, dropped, at)] for t in transfers]
            copies = (_copy(here, o, t, shape, where) for o, t in zip(origins, transfers, strict=True))
            each.append(Writing(box_shape(where), tuple(copies)))
        found.append(tuple(each))
    return tuple(found)


@cached(4096, cleared_by=forget_with_residences, of_sizes=True)
def permutations(
    layout: Layout, shape: tuple[int, ...], route: tuple[Slot | None, ...]
) -> tuple[tuple[int, Copy], ...]:
    """In one memory, for each box that another shard goes to: the piece it is in, and the copy."""
    here, mesh = holding(layout), layout.mesh
    splitting = [mesh.index_of[axis] for axis in layout.split_axes]
    found: dict[tuple[int, tuple[int, ...]], Copy] = {}
    for slot in here.residence.owned:
        source, coords = route[slot], mesh.coords(slot)
        at, number = here.piece_of[slot], tuple(coords[i] for i in splitting)
        if source is not None and (at, number) not in found:
            origin, where = (slices(box_at(layout, shape, each)) for each in (mesh.coords(source), coords))
            found[at, number] = Copy(here.piece_of[source], origin, where)
    return tuple((at, copy) for (at, _), copy in found.items())


def _moved(layout: Layout, slot: Slot, axes: Sequence[str], at: Sequence[int]) -> Slot:
    """The slot at other coordinates of some axes."""
    mesh = layout.mesh
    fixed = dict(zip(axes, at, strict=True))
    return mesh.slot([fixed.get(axis, c) for axis, c in zip(mesh.axis_names, mesh.coords(slot), strict=True)])
