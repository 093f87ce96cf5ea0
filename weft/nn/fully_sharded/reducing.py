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

from ...engine.memory import memory_of
from ...engine.moves.asynchrony import issuing
from ...engine.moves.movement import layout_of, moved
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...planning import plan_layouts
from ...planning.bounds import largest
from ...planning.pieces import cuts
from ...runtime.holding import holding
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from ...watch import comm_log
from ..splitting import whole_along

__all__ = ["Reducing", "Scattered"]

_OP = "fully_shard backward"


@final
@dataclass(frozen=True, slots=True)
class _Share:
    """Where the parts of one gradient lie in a row."""

    number: int
    layout: Layout
    """Of the parameter."""
    shape: tuple[int, ...]
    start: int
    """Where a part begins among those of all gradients."""


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
        self._shares: list[_Share] = []
        at = 0
        for number, layout in layouts.items():
            self._shares.append(_Share(number, layout, shapes[number], at))
            at += math.prod(largest(layout, shapes[number]))  # parts of other devices are padded
        self._length = at
        others = tuple(each for each in mesh.axis_names if each not in self._pending)
        self._source = Layout(mesh, (others, ()), self._pending)
        self._target = Layout(mesh, (others, (axis,)))
        self._shape = (math.prod(map(mesh.axis_size, others)), self._size * self._length)

    def _dim(self, layout: Layout) -> int:
        return layout.dim_of[self._axis]

    @property
    def bytes_received(self) -> int:
        """What the busiest device receives."""
        return plan_layouts(self._source, self._target, self._shape, self._dtype.itemsize).bytes_received.max

    def pending(self, number: int, grad: torch.Tensor) -> ShardedTensor:
        """A gradient as each device has computed it, in the layout in which such gradients are added up."""
        layout = next(share.layout for share in self._shares if share.number == number)
        return self._as_computed(layout, grad)

    def _as_computed(self, layout: Layout, grad: torch.Tensor) -> ShardedTensor:
        target = whole_along(layout, self._axis).with_pending(self._pending)
        assert layout_of(grad) is not None
        return moved(as_sharded(grad), target, _OP)

    def scatter(self, grads: Mapping[int, ShardedTensor]) -> Scattered:
        """Begins to reduce gradients, in the layout that `pending` gives them."""
        if not memory_of(self._source).pieces_are_shards:
            return Scattered(self, None, self._at_once(grads), frozenset(grads))
        here = holding(self._source)
        is_full = len(grads) == len(self._shares) and all(map(_is_even, self._shares))
        make = torch.empty if is_full else torch.zeros
        pieces = []
        for slot, device in zip(here.slots, here.devices, strict=True):
            row = make(1, self._size * self._length, dtype=self._dtype, device=device)
            for share in self._shares:
                if share.number in grads:
                    grad = grads[share.number]
                    self._fill(row[0], share, grad._value.pieces[holding(grad._layout).piece_of[slot]])
            pieces.append(row)
        flat = wrap(tuple(pieces), self._source, self._shape, dtype=self._dtype)
        with issuing(True):
            return Scattered(self, moved(flat, self._target, _OP), {}, frozenset(grads))

    def _fill(self, row: torch.Tensor, share: _Share, piece: torch.Tensor) -> None:
        """Writes the parts of a gradient to their places in a row."""
        dim = self._dim(share.layout)
        for part, (start, stop) in enumerate(cuts(piece.shape[dim], (self._size,))):
            given = piece.narrow(dim, start, stop - start)
            at = part * self._length + share.start
            row[at : at + given.numel()].view(given.shape).copy_(given)

    def taken_apart(self, flat: ShardedTensor, numbers: frozenset[int]) -> dict[int, torch.Tensor]:
        """The gradients, each in memory of its own."""
        rows = holding(flat._layout)
        found: dict[int, torch.Tensor] = {}
        for share in (share for share in self._shares if share.number in numbers):
            here = holding(share.layout)
            pieces = []
            for k, slot in enumerate(here.slots):
                own = here.piece_shape(k, share.shape)
                row = flat._value.pieces[rows.piece_of[slot]][0]
                pieces.append(row[share.start : share.start + math.prod(own)].view(own).clone())
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
                for share in self._shares
                if share.number in grads
            }
        if comm_log.is_logging():
            comm_log.note_end()
        return {number: grad.to(self._dtype) for number, grad in found.items()}


def _is_even(share: _Share) -> bool:
    """Whether all parts of a gradient have as many elements."""
    return all(size % share.layout.split_count(dim) == 0 for dim, size in enumerate(share.shape))
