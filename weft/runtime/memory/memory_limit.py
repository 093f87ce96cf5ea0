"""What a movement may hold at once: those that would hold more go part by part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar

import torch

from ...during import during
from ...planning import Plan, plan_layouts
from ...sharding.layout import Layout
from ..holding import Pieces, holding
from .host_pool import pooled_empty

__all__ = ["in_parts", "limited_to", "memory_limit", "planned"]

_limit: ContextVar[int | None] = ContextVar("weft_memory_limit", default=None)


def memory_limit() -> int | None:
    """The bytes that a device may hold during a movement, if somebody has said so."""
    return _limit.get()


_AS_IT_IS = nullcontext()


def limited_to(limit: int | None) -> AbstractContextManager[None]:
    """Movements inside the block hold no more than so many bytes on a device; None: as many as they like.

    >>> with limited_to(1 << 20):
    ...     memory_limit()
    1048576
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"memory_limit is a number of bytes, but got {limit!r}")
    return _AS_IT_IS if limit == _limit.get() else during(_limit, limit)


def planned(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> Plan:
    """The plan of a movement that holds no more than it may."""
    return plan_layouts(source, target, shape, itemsize, memory_limit=memory_limit())


def in_parts(
    plan: Plan, pieces: Pieces, dtype: torch.dtype, move: Callable[[Pieces, tuple[int, ...]], Pieces]
) -> Pieces:
    """The pieces after a plan in parts: `move` brings one part, of a shape of its own, from layout to layout."""
    assert plan.parts is not None
    there, dim = holding(plan.target), plan.parts.dim
    kinds = zip(there.shapes(plan.shape), there.devices, strict=True)
    targets = tuple(pooled_empty(shape, dtype, device) for shape, device in kinds)
    with limited_to(None):
        for start, stop in plan.parts.intervals(plan.shape):
            part = tuple(piece.narrow(dim, start, stop - start) for piece in pieces)
            arrived = move(part, plan.parts.shape(plan.shape, (start, stop)))
            for target, each in zip(targets, arrived, strict=True):
                target.narrow(dim, start, stop - start).copy_(each)
    return targets
