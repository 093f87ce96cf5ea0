"""Overlaps: writes that torch refuses because what is read is partly what is written to, wherever devices hold it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...runtime.strides import is_dense
from ..sharded import ShardedTensor

__all__ = ["parted", "refuse_overlaps", "shown_memory"]


def refuse_overlaps(written: torch.Tensor, read: Iterable[torch.Tensor]) -> None:
    """Raises where torch would for whole tensors: views of one tensor that overlap, but not all over."""
    for x in read:
        if x is not written and _overlap_partly(written, x):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def parted(written: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
    """What is read, in memory of its own where it has that of what is written to: torch may refuse for parts of both."""
    if read is written or not _share_memory(written, read):
        return read
    if isinstance(read, ShardedTensor) and read._value.is_put_off:
        _ = read._value.pieces  # what is written to has it sent too, and a copy would be sent beside it
    return read.clone()


def _share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    if not isinstance(x, ShardedTensor) or not isinstance(y, ShardedTensor) or shown_memory(x) != shown_memory(y):
        return False
    return x.dtype is y.dtype and bool(x.numel() and y.numel())


def _overlap_partly(x: torch.Tensor, y: torch.Tensor) -> bool:
    """As torch tells for tensors that lie in memory without gaps; for others it is too hard, and they are let through."""
    if not _share_memory(x, y) or not all(is_dense(tuple(z.shape), z.stride()) for z in (x, y)):
        return False
    start, other = int(x.storage_offset()), int(y.storage_offset())
    stop, other_stop = start + x.numel(), other + y.numel()
    if (start, stop) == (other, other_stop):
        return x.stride() != y.stride()
    return start < other_stop and other < stop


def shown_memory(x: ShardedTensor) -> int:
    """What tells which memory a tensor would have if it were whole: that of what it shows in the end."""
    while (shown := x._value.shown) is not None:
        x = shown.base.tensor
    first = x._value.total.value if x._value.total is not None else x._value.pieces[0] if x._value.pieces else None
    return id(x) if first is None or first.is_meta else first.untyped_storage()._cdata
