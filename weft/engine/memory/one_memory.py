"""One memory for all devices of a mesh: a value is stored whole, and its layout is a label.

What is pending is stored once for each contribution, or known whole: see `weft.engine.total`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import final

import torch

from ...planning.rearrangement import OpenRearrangement
from ...runtime import run
from ...runtime.holding import Pieces, holding, slices
from ...runtime.in_process import placed
from ...runtime.machine import residence
from ...runtime.memory.lazy_copy import lazy_clone
from ...runtime.strides import Strides, dense_strides
from ...runtime.traced import is_traced
from ...sharding.geometry import box, box_at
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...sharding.mesh import DeviceMesh
from ..sharded import ShardedTensor, made, stand_of, wrap, wrap_total, wrap_whole
from ..total import Contributions, Origin, known_total, part_pieces
from ..views.copy_views import current, is_observed, remember, remember_alias, remember_told, repeats
from ..views.view import Geometry, View, beginning
from ..writes.copying import copy_once
from .carrying import carried
from .memory import Memory, Part, Spots

__all__ = ["OneMemory", "spread"]


@final
class OneMemory(Memory):
    """The memory that all devices of a mesh share."""

    pieces_are_shards = False

    def held_whole(self, x: ShardedTensor) -> torch.Tensor | None:
        """The value, unless it is pending."""
        return None if x._form.layout.pending else x._value.pieces[0]

    def runs_whole(self, layouts: Sequence[Layout]) -> bool:
        """Where nothing is pending."""
        return not any(layout.pending for layout in layouts)

    def runs_on_totals(self, outputs: Sequence[Layout]) -> bool:
        """Where something is pending."""
        return any(layout.pending for layout in outputs)

    def spots(self, mesh: DeviceMesh, layouts: Sequence[Layout]) -> Spots:
        """One for each coordinate of the pending axes."""
        axes = frozenset(axis for layout in layouts for axis in layout.pending_axes)
        ranges = [
            range(n) if axis in axes else range(1) for axis, n in zip(mesh.axis_names, mesh.mesh_shape, strict=True)
        ]
        return Spots(axes, tuple((coords, mesh.slot(coords)) for coords in product(*ranges)))

    def part(self, layout: Layout, shape: Sequence[int], coords: tuple[int, ...]) -> Part | None:
        """The box of a spot."""
        return slices(box_at(layout, shape, coords)) if layout.split_axes else None

    def put(
        self, whole: torch.Tensor, layout: Layout, asked: DeviceMapping | None = None, brought_to: str | None = None
    ) -> ShardedTensor:
        """The value itself, until one of both is written to."""
        apart = whole.detach() if whole.requires_grad else whole
        there = lazy_clone(placed(apart, residence(layout.mesh).device))
        if not layout.pending:
            return wrap_whole(there, layout, asked)
        if there.is_meta or is_traced():
            return wrap(run.spread(there, layout), layout, there.shape, asked=asked)
        return spread(there, layout, asked)

    def relabeled(self, x: ShardedTensor, target: Layout, asked: DeviceMapping | None) -> ShardedTensor | None:
        """The same whole value, with other reductions pending, in the same memory."""
        source = x._layout
        here, there = residence(source.mesh), residence(target.mesh)
        if not there.unified or here.memories[0] != there.memories[0]:
            return None
        total = known_total(x) if source.pending else lazy_clone(x._value.pieces[0])
        if total is None:
            return None
        if not target.pending:
            return wrap((lazy_clone(total),), target, x.shape, asked=asked)
        if not source.pending:
            return spread(total, target, asked)
        kinds = {op for _, op in source.pending}
        if source.mesh != target.mesh or not kinds >= {op for _, op in target.pending}:
            return None
        shape, strides, dtype = tuple(x.shape), dense_strides(tuple(x.shape), x.stride()), x.dtype

        def less() -> ShardedTensor:
            return wrap(carried(x._value.pieces, source, target, shape, strides, dtype, "a movement"), target, shape)

        total = lazy_clone(total)
        return wrap_total(total, target, Contributions(Origin(less), 0, total, target), [False], asked)

    def on_whole(
        self, given: Sequence[ShardedTensor], target: Layout, op: Callable[..., torch.Tensor], *, is_view: bool
    ) -> ShardedTensor:
        """What an op gives of whole values, or of each contribution where a value is not known whole."""
        stands = [stand_of(x) for x in given]  # what a view is one of may become another

        def each() -> ShardedTensor:
            held = [stand.tensor._value.pieces for stand in stands]
            pieces = tuple(op(*(pieces[k] for pieces in held)) for k in range(holding(target).count))
            return wrap(pieces, target, pieces[0].shape)

        totals = [known_total(x) for x in given]
        if any(total is None for total in totals):
            if is_view and target.pending:
                part_pieces(given[0])
            return each()
        value = op(*totals)
        first = given[0]._value.total
        written = first.written if is_view and first is not None else [False]
        return wrap_total(value, target, Contributions(Origin(each, is_view), 0, value, target), written)

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
        """What the op itself gives."""
        return self.on_whole([*([] if into is None else [into]), *sources], target, whole, is_view=is_view)

    def show(
        self, y: ShardedTensor, x: ShardedTensor, view: View, *, is_moved: bool = True, is_copied: bool = False
    ) -> ShardedTensor:
        """An alias, of which is told what a copy would move where somebody looks on."""
        if is_copied:
            if view.geometry is not None:
                y = _at(x, y, view.geometry())
            return remember(y, x, view.read, view.write, told=view.told())
        if y._layout.pending and x._form.is_special and view.geometry is not None:
            y = _at(x, y, view.geometry())  # a copy of what is pending lies elsewhere than it says
        if (is_moved or repeats(x)) and is_observed() and not view.is_loose:
            return remember_told(y, x, view.told())
        return y if view.is_loose else remember_alias(y, x)

    def copies_views(self, x: ShardedTensor) -> bool:
        """Of what is pending or shows another; they are told of where somebody looks on."""
        return bool(x._layout.pending) or x._value.shown is not None or is_observed()

    def laid_like(self, y: ShardedTensor, x: ShardedTensor) -> ShardedTensor:
        """A view of memory with gaps, or with elements in one place, has its strides; what was computed of it gets them."""
        strides, offset = x.stride(), int(x.storage_offset())
        if (y.stride(), int(y.storage_offset())) == (strides, offset):
            return y
        pieces = tuple(_placed(piece, strides, offset) for piece in y._value.pieces)
        laid = wrap(pieces, y._layout, y.shape, strides=strides, offset=offset)
        laid._value.turned = y._value.turned
        return laid

    def begun(self, y: ShardedTensor, offset: int) -> ShardedTensor:
        """With memory before it."""
        if int(y.storage_offset()) == offset:
            return y
        pieces = tuple(_placed(piece, y.stride(), offset) for piece in y._value.pieces)
        return wrap(pieces, y._layout, y.shape, strides=y.stride(), offset=offset)

    def assembled(self, shards: Sequence[torch.Tensor], layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """Each shard is written to its box, replicas once."""
        here, first = holding(layout), shards[0]
        device = first.device if first.is_meta else here.residence.device
        pieces = tuple(torch.empty(shape, dtype=first.dtype, device=device) for _ in range(here.count))
        seen: set[object] = set()
        for slot, shard in enumerate(shards):
            where = (here.piece_of[slot], box(layout, shape, slot))
            if where not in seen:
                seen.add(where)
                here.shard(pieces, shape, slot).copy_(shard)
        return pieces

    def wholes(self, x: ShardedTensor) -> Pieces:
        """The pieces."""
        return tuple(piece.clone() for piece in current(x))

    def from_wholes(self, wholes: Pieces, layout: Layout, shape: tuple[int, ...]) -> Pieces:
        """The values, on the device."""
        device = residence(layout.mesh).device
        return tuple(placed(whole, device) for whole in wholes)


def _placed(value: torch.Tensor, strides: Strides, offset: int) -> torch.Tensor:
    """A value in memory of its own, with gaps, and gaps before it, as strides and an offset say."""
    reach = sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True)) if value.numel() else -1
    memory = torch.empty(offset + reach + 1, dtype=value.dtype, device=value.device)
    laid = memory.as_strided(value.shape, strides, offset)
    copy_once(laid, value)
    return laid


def _at(x: ShardedTensor, y: ShardedTensor, geometry: Geometry) -> ShardedTensor:
    """A copy of what a view shows of another tensor, as that view: with the strides and the offset that it has there."""
    strides, offset = geometry[0], geometry[1] + beginning(x, y.dtype)
    if y._layout.pending:  # each contribution is in memory of its own
        return made(y._form, y._value, offset)
    whole = y._value.pieces[0]
    if (whole.stride(), int(whole.storage_offset())) != (strides, offset):
        whole = _placed(whole, strides, offset)
    return wrap((whole,), y._layout, y.shape)


def spread(total: torch.Tensor, target: Layout, asked: DeviceMapping | None = None) -> ShardedTensor:
    """A value as a pending tensor: some device contributes it, others what changes nothing."""

    def each() -> ShardedTensor:
        return wrap(run.spread(total, target), target, total.shape)

    return wrap_total(total, target, Contributions(Origin(each), 0, total, target), [False], asked)
