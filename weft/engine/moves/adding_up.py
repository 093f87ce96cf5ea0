"""`adding_up`: gradients of several backward passes add up before they are reduced between devices, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, final

import torch

from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp
from ..sharded import ShardedTensor, wrap_total
from ..total import UNKNOWN, Contributions, known_total

__all__ = ["adding_up", "is_adding_up", "left_pending"]


@final
class _Blocks:
    """How many blocks are open. Not for each thread: backward passes run in threads of torch's own."""

    count: ClassVar[int] = 0


@contextmanager
def adding_up() -> Iterator[None]:
    """Inside, gradients arrive at their tensors with their sums pending, where that takes no more memory.

    Whoever opens the block brings them to their layouts afterwards.
    """
    _Blocks.count += 1
    try:
        yield
    finally:
        _Blocks.count -= 1


def is_adding_up() -> bool:
    """Whether such a block is open."""
    return bool(_Blocks.count)


def left_pending(grad: torch.Tensor | None, target: Layout) -> torch.Tensor | None:
    """A gradient that lies as its tensor does, but for sums that may be left pending now; None where there are none.

    Where the tensor is split by an axis over which the sum is pending, waiting would take the memory of the whole. What is
    left holds nothing of what it was computed from.
    """
    if not _Blocks.count or not isinstance(grad, ShardedTensor):
        return None
    found = grad._layout
    if not found.pending or found.resolved is not target or any(kind is not ReduceOp.SUM for _, kind in found.pending):
        return None
    total = known_total(grad)
    if total is None:
        return grad
    return wrap_total(total, found, Contributions(UNKNOWN, 0, total, found), [False])
