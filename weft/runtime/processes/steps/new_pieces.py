"""`NewPieces`: memory for what a step makes."""

from __future__ import annotations

from typing import final

import torch

from ....sharding.layout import Layout
from ....sharding.placements import ReduceOp
from ...holding import Pieces, holding
from ...memory.host_pool import pooled_empty
from ...reduction import neutral

__all__ = ["NewPieces"]


@final
class NewPieces:
    """Memory for what this process stores of a layout, as often as it is needed."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], fill: ReduceOp | None = None) -> None:
        there = holding(layout)
        self._kinds = list(zip(there.shapes(shape), there.devices, strict=True))
        self._fill = fill

    def new(self, dtype: torch.dtype) -> Pieces:
        """Fresh pieces: neutral elements of the reduction that begins to be pending, else anything."""
        pieces = tuple(pooled_empty(shape, dtype, device) for shape, device in self._kinds)
        if self._fill is not None:
            for piece in pieces:
                piece.fill_(neutral(self._fill, dtype))
        return pieces
