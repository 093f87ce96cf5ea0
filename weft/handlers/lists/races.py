"""Lists whose tensors share elements on a GPU, where kernels write to all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch

from ...engine.sharded import ShardedTensor
from ...runtime.memory.lazy_copy import is_aside, part
from ...runtime.traced import is_traced

__all__ = ["KnownPlaces", "race"]


def race(written: Sequence[torch.Tensor]) -> bool:
    """Whether some tensors of a list share elements on a GPU."""
    pieces = [
        piece for x in written if x.is_cuda for piece in (x._value.pieces if isinstance(x, ShardedTensor) else (x,))
    ]
    spans = sorted(_span(piece) for piece in pieces if piece.numel())
    return any(one[0] == other[0] and other[1] < one[2] for one, other in pairwise(spans))


@final
class KnownPlaces:
    """Where the pieces that calls of one kind write to lie on a GPU. Asking for their addresses parts lazy copies, too."""

    def __init__(self, pieces: Sequence[torch.Tensor]) -> None:
        self._reach = [
            (_span(piece)[2] - piece.storage_offset()) * piece.itemsize * bool(piece.numel()) for piece in pieces
        ]
        self._apart: list[int] = []
        """The addresses that were looked at last, and do not overlap: the next step writes to the same."""

    def race(self, pieces: Sequence[torch.Tensor]) -> bool:
        """Whether some share elements, or may: what a compiler looks at has no addresses."""
        if is_traced():
            return True
        if is_aside(pieces[0].get_device()):
            part(pieces)
        starts = [piece.data_ptr() for piece in pieces]
        if starts == self._apart:
            return False
        spans = sorted((start, start + reach) for start, reach in zip(starts, self._reach, strict=True) if reach)
        if any(other[0] < one[1] for one, other in pairwise(spans)):
            return True
        self._apart = starts
        return False


def _span(x: torch.Tensor) -> tuple[int, int, int]:
    """The storage of a tensor, and from where to where in it the elements are."""
    start = int(x.storage_offset())
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.untyped_storage()._cdata, start, start + reach + 1
