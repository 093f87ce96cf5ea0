"""What is told of a movement: to the log, to the policy, and to whoever traces a program, for when that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from ...runtime.memory.memory_limit import planned
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...watch import comm_log, policy
from ...watch.notes import Note, is_watched, leave_note
from ..sharded import ShardedTensor
from ..views.folded import is_unmade

__all__ = ["note_move", "note_return", "note_steps", "tell"]


def tell(x: ShardedTensor, target: Layout, op: str, *, implicit: bool, fix: str | None = None) -> None:
    """Logs and reports a movement. `implicit`: nobody has asked for it; `fix`: what the policy says to do instead."""
    source = x._layout
    if is_unmade(x) and is_watched():
        x._value.pieces  # noqa: B018 - what making them moves is told first, in every memory
    if comm_log.is_logging() or (implicit and policy.watches()) or source.pending or source.mesh != target.mesh:
        _tell(source, target, tuple(x.shape), x.dtype, op, implicit, fix)


def note_move(x: ShardedTensor, target: Layout, op: str) -> None:
    """Logs and reports a movement that this memory need not carry out."""
    if x._layout is not target:
        tell(x, target, op, implicit=True)


def note_return(x: ShardedTensor, source: Layout, op: str) -> None:
    """Logs and reports the movement of a tensor back from another layout, which this memory need not carry out."""
    note_steps(source, x._layout, tuple(x.shape), x.dtype, op)


def note_steps(
    source: Layout, target: Layout, shape: tuple[int, ...], dtype: torch.dtype, op: str, *, implicit: bool = True
) -> None:
    """Logs and reports what it takes to move such a tensor, which this memory need not carry out."""
    if source is not target and is_watched():
        _tell(source, target, shape, dtype, op, implicit)


def _tell(
    source: Layout,
    target: Layout,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    op: str,
    implicit: bool,
    fix: str | None = None,
) -> None:
    if is_traced():
        leave_note(_MovementNote(source, target, dtype.itemsize, op, implicit, fix), shape)
    else:
        _tell_now(source, target, shape, dtype.itemsize, op, implicit, fix)


def _tell_now(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, op: str, implicit: bool, fix: str | None
) -> None:
    plan = planned(source, target, shape, itemsize)
    if implicit:
        policy.report(plan, op, fix)
    comm_log.log_plan(plan, op, implicit=implicit)


@final
@dataclass(frozen=True, slots=True)
class _MovementNote(Note):
    """A movement, as it is logged and reported."""

    source: Layout
    target: Layout
    itemsize: int
    op: str
    implicit: bool
    fix: str | None

    def tell(self, sizes: tuple[int, ...]) -> None:
        _tell_now(self.source, self.target, sizes, self.itemsize, self.op, self.implicit, self.fix)
