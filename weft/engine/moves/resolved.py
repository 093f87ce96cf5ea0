"""The resolved form that a pending tensor keeps, until any pending tensor is written to."""

from __future__ import annotations

from itertools import count
from typing import final

from ..sharded import ShardedTensor
from ..value import Unmade

__all__ = ["forget_resolved", "is_current", "remember_resolved"]


@final
class _PendingWrites:
    numbers = count(1)
    """Taking the next is one step for all threads, which adding 1 is not."""
    last = 0
    """The number of the last write to a pending tensor."""


def remember_resolved(x: ShardedTensor, resolved: ShardedTensor | Unmade) -> None:
    """Keeps the resolved form of a pending tensor."""
    x._value.resolved, x._value.resolved_at = resolved, _PendingWrites.last


def is_current(x: ShardedTensor) -> bool:
    """Whether the resolved form that a pending tensor keeps is still its value."""
    return x._value.resolved_at == _PendingWrites.last


def forget_resolved() -> None:
    """After a write to a pending tensor: what others keep of it, through views too, may be out of date."""
    _PendingWrites.last = next(_PendingWrites.numbers)
