"""The tensors at one place of the lists (a parameter, its gradient, its state), in the layout of the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...engine.moves.movement import from_plain, moved, to_plain, to_write_plain
from ...engine.sharded import ShardedTensor, wrap
from ...engine.total import own_pieces
from ...engine.writes.writing import store
from ...runtime.holding import holding
from ...runtime.strides import elementwise_strides, in_order
from ...sharding.layout import Layout

__all__ = ["ListEntry", "entry_of"]


@dataclass(frozen=True, slots=True)
class ListEntry:
    """The tensors at one place, as they were given and as they are computed on; None where a list is empty."""

    given: tuple[torch.Tensor | None, ...]
    laid: tuple[torch.Tensor | None, ...]
    layout: Layout | None
    """None where all are plain."""
    shape: tuple[int, ...]
    dtype: torch.dtype | None

    @property
    def lay_right(self) -> bool:
        """Whether all tensors are computed on where they lie."""
        return self.layout is not None and all(
            x is y and (not isinstance(x, ShardedTensor) or not (x._form.is_special or x._layout.pending))
            for x, y in zip(self.given, self.laid, strict=True)
        )

    @property
    def count(self) -> int:
        """How many pieces each tensor has."""
        return 1 if self.layout is None else holding(self.layout).count

    def pieces(self, position: int) -> list[torch.Tensor]:
        """The pieces of the tensor of one list; a plain one serves for all pieces."""
        x = self.laid[position]
        assert x is not None
        return list(x._value.pieces) if isinstance(x, ShardedTensor) else [x] * self.count

    def store(self, position: int, op: str) -> None:
        """Writes back what was written in another layout than its own."""
        x, changed = self.given[position], self.laid[position]
        if x is changed or x is None or changed is None:
            return
        if isinstance(x, ShardedTensor):
            store(x, changed, op)
        else:
            x.copy_(to_write_plain(changed, op) if isinstance(changed, ShardedTensor) else changed)

    def wrapped(self, pieces: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor that these pieces of a result make up; `dtype`: that of a result that has none here."""
        if self.layout is None:
            return pieces[0]
        shaped = [x for x in self.given if x is not None and x.dim()]
        strides = elementwise_strides(shaped) if shaped else ()
        ordered = tuple(in_order(piece, strides) for piece in pieces)
        return wrap(ordered, self.layout, self.shape, dtype=dtype or self.dtype, strides=strides)


def entry_of(given: Sequence[torch.Tensor | None], writes: bool, op: str) -> ListEntry:
    """The tensors at one place, brought to the layout of the first; plain ones stay so where nothing else can be written to."""
    if not writes:
        given = _grown(given)
    leader = given[0]
    if leader is not None and not isinstance(leader, ShardedTensor) and not writes:
        alike = (x for x in given if isinstance(x, ShardedTensor) and x.shape == leader.shape)
        leader = next(alike, leader)
    if not isinstance(leader, ShardedTensor):
        plain = tuple(to_write_plain(x, op) if isinstance(x, ShardedTensor) else x for x in given)
        return ListEntry(tuple(given), plain, None, () if leader is None else tuple(leader.shape), None)
    layout, shape = leader._layout.resolved, tuple(leader.shape)
    laid = tuple(None if x is None else _laid(x, layout, shape, op) for x in given)
    return ListEntry(tuple(given), laid, layout, shape, leader.dtype)


def _grown(given: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
    """The tensors at one place, the first in the shape of the result, which it need not have."""
    first, *others = given
    if first is None or all(x is None or not x.dim() or x.shape == first.shape for x in others):
        return given
    try:
        shape = torch.broadcast_shapes(first.shape, *(x.shape for x in others if x is not None))
    except RuntimeError:
        return given  # which torch refuses
    return given if shape == first.shape else (torch.ops.aten.expand.default(first, list(shape)), *others)


def _laid(x: torch.Tensor, layout: Layout, shape: tuple[int, ...], op: str) -> torch.Tensor:
    """A tensor in the layout of the first of its place; a single number is plain and serves for all pieces."""
    if not x.dim() and shape:
        return to_plain(x) if isinstance(x, ShardedTensor) else x
    if tuple(x.shape) != shape:
        x = torch.ops.aten.expand.default(x, list(shape))
    if not isinstance(x, ShardedTensor):
        return from_plain(x, layout, brought_to=op)
    if x._layout is layout:
        own_pieces(x)
        return x
    return moved(x, layout, op, implicit=True)
