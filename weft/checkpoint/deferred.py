"""`Deferred`: a tensor of a checkpoint that is read when it is written elsewhere, a bucket at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import torch

from ..sharding.geometry import Box, whole_box
from .files.boxes import boxes_of
from .files.index import SavedTensor

__all__ = ["Deferred"]


@final
class Deferred(torch.Tensor):
    """A saved tensor that has a shape and a dtype, but no memory: `read` gives boxes of it."""

    read: Callable[[Box], torch.Tensor]

    @staticmethod
    def __new__(cls, saved: SavedTensor, read: Callable[[Box], torch.Tensor]) -> Deferred:
        self = torch.Tensor._make_wrapper_subclass(cls, saved.shape, dtype=saved.dtype, device=torch.device("cpu"))
        self.read = read
        return self

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # as torch calls it
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{func} on a tensor that is not read yet")

    def parts(self, most: int) -> Iterator[torch.Tensor]:
        """Its elements in row-major order, so many bytes at a time."""
        for box in boxes_of(self.shape, most // self.dtype.itemsize):
            yield self.read(box)

    def whole(self) -> torch.Tensor:
        """All of it."""
        return self.read(whole_box(self.shape))
