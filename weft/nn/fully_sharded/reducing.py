"""Gradients of a block: reduced and scattered in one collective, as one flat tensor of all of them.

row (one for each device along other axes)   part 0 of every gradient | part 1 of every gradient | …   pending over the axis
after                                        the device's own part of every gradient
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ...caches import cached
from ...engine.memory import memory_of
from ...engine.moves.asynchrony import issuing
from ...engine.moves.movement import moved
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...planning import plan_layouts
from ...planning.boxes.pieces import cuts
from ...planning.costs.bounds import largest
from ...runtime.holding import holding
from ...runtime.machine import forget_with_residences
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from ...sharding.placements import ReduceOp
from ...watch import comm_log
from ..splitting import whole_along

__all__ = ["Reducing", "Scattered"]

_OP = "fully_shard backward"


@final
@dataclass(frozen=True, slots=True)
class _GradientShare:
    """Where the parts of one gradient lie in a row."""

    number: int
    layout: Layout
    """Of the parameter."""
    computed: Layout
    """Of the gradient as each device computes it."""
    shape: tuple[int, ...]
    dim: int
    """Which dim the axis splits."""
    start: int
    """Where a part begins among those of all gradients."""
    length: int
    """How many elements there are for a part, the largest."""


@final
class Scattered:
    """Gradients on their way to the devices that keep them."""

    def __init__(
        self,
        reducing: Reducing,
        flat: ShardedTensor | None,
        ready: Mapping[int, torch.Tensor],
        numbers: frozenset[int],
    ) -> None:
        self._reducing, self._flat, self._ready, self._numbers = reducing, flat, ready, numbers

    def wait(self) -> Mapping[int, torch.Tensor]:
        """By the number of the parameter, in its layout."""
        return self._ready if self._flat is None else self._reducing.taken_apart(self._flat, self._numbers)


@final
class Reducing:
    """How the gradients of some parameters, which an axis splits, are reduced over it and others, and scattered."""

    def __init__(
        self,
        layouts: Mapping[int, Layout],
        shapes: Mapping[int, tuple[int, ...]],
        axis: str,
        also: Sequence[str],
        dtype: torch.dtype,
    ) -> None:
        mesh = next(iter(layouts.values())).mesh
        self._axis, self._dtype, self._size = axis, dtype, mesh.axis_size(axis)
        self._pending = {each: ReduceOp.SUM for each in mesh.axis_names if each == axis or each in also}
        self._shares: dict[int, _GradientShare] = {}
        at = 0
        for number, layout in layouts.items():
            shape = shapes[number]
            length = math.prod(largest(layout, shape))  # parts of other devices are padded
            computed = whole_along(layout, axis).with_pending(self._pending)
            self._shares[number] = _GradientShare(number, layout, computed, shape, layout.dim_of[axis], at, length)
            at += length
        self._length = at
        self._are_even = all(map(_is_even, self._shares.values()))
        others = tuple(each for each in mesh.axis_names if each not in self._pending)
        self._source = Layout(mesh, (others, ()), self._pending)
        self._target = Layout(mesh, (others, (axis,)))
        self._shape = (mesh.group_size(others), self._size * self._length)

    @property
    def bytes_received(self) -> int:
        """What the busiest device receives."""
        return plan_layouts(self._source, self._target, self._shape, self._dtype.itemsize).bytes_received.max

    def pending(self, number: int, grad: torch.Tensor) -> ShardedTensor:
        """A gradient as each device has computed it, in the layout in which such gradients are added up."""
        own, target = as_sharded(grad), self._shares[number].computed
        is_there = own._layout is target and own._value.total is None and own._value.shown is None
        return own if is_there else moved(own, target, _OP)

    def scatter(self, grads: Mapping[int, ShardedTensor]) -> Scattered:
        """Begins to reduce gradients, in the layout that `pending` gives them."""
        if not memory_of(self._source).pieces_are_shards:
            return Scattered(self, None, self._at_once(grads), frozenset(grads))
        here = holding(self._source)
        given = [(self._shares[number], grad, holding(grad._layout).piece_of) for number, grad in grads.items()]
        is_full = self._are_even and len(grads) == len(self._shares)
        pieces = []
        for slot, device in zip(here.slots, here.devices, strict=True):
            parts = [(share, grad._value.pieces[piece_of[slot]]) for share, grad, piece_of in given]
            make = torch.empty if is_full else torch.zeros
            row = make(1, self._size * self._length, dtype=self._dtype, device=device)
            if self._are_even:
                self._fill_evenly(row.view(self._size, self._length), parts)
            else:
                for share, piece in parts:
                    self._fill(row[0], share, piece)
            pieces.append(row)
        flat = wrap(tuple(pieces), self._source, self._shape, dtype=self._dtype)
        with issuing(True):
            return Scattered(self, moved(flat, self._target, _OP), {}, frozenset(grads))

    def _fill_evenly(self, rows: torch.Tensor, given: Sequence[tuple[_GradientShare, torch.Tensor]]) -> None:
        """Writes gradients to their places, where all parts of each have as many elements: a row for each part."""
        rooms = dict(zip(self._shares, rows.split([share.length for share in self._shares.values()], 1), strict=True))
        into, parts = [], []
        for share, piece in given:
            room = rooms[share.number]
            if share.dim == 0 and piece.is_contiguous():
                into.append(room)
                parts.append(piece.view(self._size, share.length))
                continue
            part = piece.unflatten(share.dim, (self._size, -1)).movedim(share.dim, 0)
            into.append(room.view(part.shape))
            parts.append(part)
        torch._foreach_copy_(into, parts)

    def _fill(self, row: torch.Tensor, share: _GradientShare, piece: torch.Tensor) -> None:
        """Writes the parts of a gradient to their places in a row."""
        for part, (start, stop) in enumerate(cuts(piece.shape[share.dim], (self._size,))):
            given = piece.narrow(share.dim, start, stop - start)
            at = part * self._length + share.start
            row[at : at + given.numel()].view(given.shape).copy_(given)

    def taken_apart(self, flat: ShardedTensor, numbers: frozenset[int]) -> dict[int, torch.Tensor]:
        """The gradients, each in memory of its own."""
        rows = holding(flat._layout)
        found: dict[int, torch.Tensor] = {}
        for share in (self._shares[number] for number in sorted(numbers)):
            pieces = []
            for slot, own, size in _stored(share.layout, share.shape):
                row = flat._value.pieces[rows.piece_of[slot]][0]
                pieces.append(row[share.start : share.start + size].view(own).clone())
            found[share.number] = wrap(tuple(pieces), share.layout, share.shape, dtype=self._dtype)
        return found

    def _at_once(self, grads: Mapping[int, ShardedTensor]) -> dict[int, torch.Tensor]:
        """In one memory what is pending is known whole: nothing has to be put together."""
        if comm_log.is_logging():
            plan = plan_layouts(self._source, self._target, self._shape, self._dtype.itemsize)
            comm_log.log_plan(plan, _OP, implicit=False)
        with comm_log.paused():
            found = {
                share.number: moved(grads[share.number], share.layout, _OP)
                for share in self._shares.values()
                if share.number in grads
            }
        comm_log.note_end()
        return {number: grad.to(self._dtype) for number, grad in found.items()}


def _is_even(share: _GradientShare) -> bool:
    """Whether all parts of a gradient have as many elements."""
    return all(size % share.layout.split_count(dim) == 0 for dim, size in enumerate(share.shape))


@cached(4096, cleared_by=forget_with_residences)
def _stored(layout: Layout, shape: tuple[int, ...]) -> tuple[tuple[Slot, tuple[int, ...], int], ...]:
    """The pieces that this process stores of a tensor: a slot that has it, its shape, and how many elements."""
    here = holding(layout)
    return tuple((slot, own, math.prod(own)) for slot, own in zip(here.slots, here.shapes(shape), strict=True))
