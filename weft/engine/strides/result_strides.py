"""The strides of a result, and those that its pieces have."""

from __future__ import annotations

from functools import cached_property
from typing import final

import torch

from ...runtime.holding import Pieces, holding
from ...runtime.strides import Strides, dense_strides, in_order
from ...sharding.layout import Layout

__all__ = ["Strided"]

_stride = torch.Tensor.stride


@final
class Strided:
    """The strides of one result, and those that its pieces have."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], whole: Strides) -> None:
        self._layout, self._shape, self.whole = layout, shape, whole

    @cached_property
    def pieces(self) -> tuple[Strides, ...]:
        """Those of the pieces here; worked out when there are some."""
        here = holding(self._layout)
        return tuple(dense_strides(here.piece_shape(i, self._shape), self.whole) for i in range(here.count))

    def ordered(self, pieces: Pieces) -> Pieces:
        """Pieces with their dims in the order that the whole has; copies where a kernel laid them out otherwise."""
        if tuple(map(_stride, pieces)) == self.pieces:
            return pieces
        return tuple([in_order(piece, self.whole) for piece in pieces])
