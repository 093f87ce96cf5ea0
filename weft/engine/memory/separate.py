"""A memory for each device, in one process or in several: a tensor is stored in shards, and what has to move does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from ...planning.rearrangement import OpenRearrangement, Rearrangement
from ...runtime import run
from ...runtime.holding import Pieces, holding, slices
from ...runtime.in_process import placed
from ...runtime.machine import residence
from ...runtime.memory.lazy_copy import lazy_clone
from ...runtime.rearranging import OpenRearranging, rearrange, seen, stored
from ...runtime.strides import Strides, dense_strides, in_order, is_in_order, row_major
from ...runtime.traced import communicated, is_open
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...sharding.mesh import DeviceMesh
from ..sharded import ShardedTensor, wrap
from ..views.copy_views import current, is_alias, remember, remember_alias, repeats
from ..views.view import View, at, shown
from ..writes.overlapping import parted
from .carrying import scattered
from .memory import Memory, Spots

__all__ = ["Separate"]


@final
class Separate(Memory):
    """The memories of devices that have one each."""

    pieces_are_shards = True

    def spots(self, mesh: DeviceMesh, layouts: Sequence[Layout]) -> Spots:
        """The devices of this process."""
        owned = residence(mesh).owned
        return Spots(frozenset(mesh.axis_names), tuple((mesh.coords(slot), slot) for slot in owned))

    def put(
        self, whole: torch.Tensor, layout: Layout, asked: DeviceMapping | None = None, brought_to: str | None = None
    ) -> ShardedTensor:
        """To each device its shard."""
        if brought_to is not None:
            run.check_same(whole, brought_to, layout)
        strides = dense_strides(tuple(whole.shape), whole.stride())
        pieces = scattered(whole.detach(), layout)
        return wrap(pieces, layout, whole.shape, asked=asked, dtype=whole.dtype, strides=strides)

    def rearrange(
        self,
        sources: Sequence[ShardedTensor],
        plan: Callable[[], tuple[OpenRearrangement, Sequence[int]]],
        target: Layout,
        shape: tuple[int, ...],
        op: str,
        whole: Callable[..., torch.Tensor],
        *,
        fill: float | None = None,
        into: ShardedTensor | None = None,
        is_view: bool = False,
    ) -> ShardedTensor:
        """Each device receives what it does not have."""
        dtype, (found, sizes) = sources[0].dtype, plan()
        if is_open(sizes) and not isinstance(found, Rearrangement):
            layouts = tuple(x._layout for x in sources)
            what = OpenRearranging(found, layouts, target, dtype, fill, into is not None, op)
            held = [piece for x in (*sources, *(() if into is None else (into,))) for piece in x._value.pieces]
            return wrap(communicated(what, tuple(held), sizes), target, shape, dtype=dtype)
        exchange = found.known(tuple(sizes))
        sides = zip(sources, exchange.sources, strict=True)
        given = [seen(each._value.pieces, each._layout, tuple(each.shape), side) for each, side in sides]
        begun = None if into is None else tuple(piece.clone() for piece in into._value.pieces)
        pieces = rearrange(given, exchange, dtype, fill=fill, into=begun, op=op)
        return wrap(stored(pieces, exchange, target, shape), target, shape, dtype=dtype)

    def show(
        self, y: ShardedTensor, x: ShardedTensor, view: View, *, is_moved: bool = True, is_copied: bool = False
    ) -> ShardedTensor:
        """An alias where nothing moved, else a copy that remembers; with the strides it would have if all were whole."""
        # Elements that are one may lie on several devices: a write to a view of such a copy is to change them all.
        if not is_moved and not repeats(x):
            assert view.geometry is not None
            return remember_alias(at(x, y, y._value.pieces, view.geometry()), x)
        if view.geometry is not None:
            y = shown(x, y, view.geometry())
        if not is_moved:
            # In memory of its own: what is written to it is not to be lost when `x` is read again before it is written back.
            y._value.pieces = tuple(piece.clone() for piece in y._value.pieces)
        if view.is_loose:
            return y
        return remember(y, x, view.read, view.write, told=view.told())

    def copies_views(self, x: ShardedTensor) -> bool:
        """Always."""
        return True

    def has_copied(self, y: ShardedTensor, x: ShardedTensor) -> bool:
        """Where its pieces have other memory, and nothing remembers that."""
        return is_alias(y) and any(
            new.untyped_storage()._cdata != old.untyped_storage()._cdata
            for new, old in zip(y._value.pieces, x._value.pieces, strict=True)
        )

    def laid_like(self, y: ShardedTensor, x: ShardedTensor) -> ShardedTensor:
        """In the order of the strides, which are said."""
        laid = shown(x, y, (x.stride(), 0))
        laid._value.turned = y._value.turned
        return laid

    def lies_in(self, x: ShardedTensor, strides: Strides) -> bool:
        """Whether each shard lies so."""
        return all(is_in_order(piece, strides) for piece in x._value.pieces)

    def ordered(self, pieces: Pieces, strides: Strides) -> Pieces:
        """Copies of those that lie otherwise."""
        return tuple(in_order(piece, strides) for piece in pieces)

    def parted(self, written: ShardedTensor, read: torch.Tensor) -> torch.Tensor:
        """A copy where both have one memory."""
        return parted(written, read)

    def assembled(self, shards: Sequence[torch.Tensor], layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """The shards themselves, until one of both is written to; of replicas in one memory the first."""
        here, strides = holding(layout), row_major(shape)
        owned = here.residence.owned
        return tuple(
            lazy_clone(in_order(placed(shards[owned.index(slot)].detach(), device), strides))
            for slot, device in zip(here.slots, here.devices, strict=True)
        )

    def wholes(self, x: ShardedTensor) -> Pieces:
        """Every shard in its place."""
        layout, pieces = x._layout, current(x)
        strides = dense_strides(tuple(x.shape), x.stride())
        wholes = tuple(
            torch.empty_strided(x.shape, strides, dtype=x.dtype, device=pieces[0].device)
            for _ in range(layout.mesh.group_size(layout.pending_axes))
        )
        here = holding(layout)
        for k, (piece, coords) in enumerate(zip(pieces, here.coords, strict=True)):
            wholes[_combination(layout, coords)][slices(here.box(k, x.shape))].copy_(piece)
        return wholes

    def from_wholes(self, wholes: Pieces, layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """What each device is to hold of them."""
        here = holding(layout)
        return tuple(
            wholes[_combination(layout, coords)][slices(here.box(k, shape))].clone().to(here.devices[k])
            for k, coords in enumerate(here.coords)
        )


def _combination(layout: Layout, coords: tuple[int, ...]) -> int:
    """Which contribution stands at some coordinates: as they are stored in one memory, the last axis runs fastest."""
    found = 0
    for axis in layout.pending_axes:
        found = found * layout.mesh.axis_size(axis) + coords[layout.mesh.index_of[axis]]
    return found
