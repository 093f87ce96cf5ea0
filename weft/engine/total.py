"""Totals: in one memory, the value of a pending tensor is computed whole, and its contributions when somebody looks at them.

What is pending is a label too, as other layouts are: an op that leaves a reduction pending runs once, on whole values, and
resolving its result is to change the label. Contributions are asked for by `local_shards`, by writes in place, and on the
way to other memories; they are computed then, each for itself, from what the op read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, final
from weakref import ref

import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ..runtime.holding import Pieces
from ..runtime.in_process import fill_pending
from ..runtime.memory.lazy_copy import is_aside, lazy_clone, part
from ..sharding.layout import Layout
from .kept import forget_written

if TYPE_CHECKING:
    from .sharded import ShardedTensor

__all__ = [
    "UNKNOWN",
    "Contributions",
    "Origin",
    "SoleContributions",
    "Total",
    "known_total",
    "last_write",
    "note_write",
    "own_pieces",
    "part_pieces",
]


@final
class _Writes:
    __slots__ = ("last", "numbers")

    def __init__(self) -> None:
        self.numbers = count(1)
        """Taking the next is one step for all threads, which adding 1 is not."""
        self.last = 0


_writes = _Writes()


_origins: deque[ref[Origin | SoleContributions]] = deque()
"""What was computed since the last write, and may be computed again. Bound: `_MOST_ORIGINS`. Cleared: by a write."""
_MOST_ORIGINS = 256
"""So many keep what they read: a program that never writes may keep any number of pending results."""


def note_write(written: Iterable[ShardedTensor] | None = None) -> None:
    """Before any write to a tensor's memory: what was computed from it before cannot be computed again.

    Where it is known which tensors are `written`, what was brought of others is kept.
    """
    _writes.last = next(_writes.numbers)
    while _origins:
        _forget_oldest()
    changed = None if written is None else tuple(written)
    forget_written(changed)
    if changed and torch.cuda.is_initialized() and is_aside(torch.cuda.current_device()):
        part(piece for x in changed if x.is_cuda for piece in x._value.pieces)


def _note_origin(origin: Origin | SoleContributions) -> None:
    _origins.append(ref(origin))
    if len(_origins) > _MOST_ORIGINS:
        _forget_oldest()


def _forget_oldest() -> None:
    """Lets the oldest origin that may be computed again go without: what it read need not stay for its sake."""
    try:
        oldest = _origins.popleft()()
    except IndexError:
        return  # another thread was quicker
    if oldest is not None:
        oldest.forget()


def last_write() -> int:
    """The number of the last write to any tensor's memory."""
    return _writes.last


@final
class Total:
    """The whole value of a pending tensor; nobody writes to it. Tensors that share memory share `written`."""

    __slots__ = ("value", "written")

    def __init__(self, value: torch.Tensor, written: list[bool]) -> None:
        self.value = value
        self.written = written


def known_total(x: ShardedTensor) -> torch.Tensor | None:
    """The whole value of a pending tensor, if it is known and the tensor was not written to since."""
    if x._value.total is None:
        _ = x._value.pieces  # a folded tensor knows it only now
    total = x._value.total
    return None if total is None or total.written[0] else total.value


def own_pieces(x: ShardedTensor) -> None:
    """Before a write: from now on its contributions, and those of its views, say what the value of a tensor is."""
    _ = x._value.pieces
    x._value.rows = None
    if x._value.total is not None:
        x._value.total.written[0] = True
    part_pieces(x)


def part_pieces(x: ShardedTensor) -> None:
    """Gives each contribution memory of its own, before a write or a view: neutral ones may be one expanded element."""
    pieces = x._value.pieces
    if len(pieces) > 1 and x._layout.pending and not _are_parted(pieces, x):
        x._value.pieces = tuple(_copied(piece, x) for piece in pieces)


def _are_parted(pieces: Pieces, whole: torch.Tensor) -> bool:
    """Whether no element of any piece is one of another, or twice in its own where it is not in the whole."""
    filled = [piece for piece in pieces if piece.numel()]
    if any(map(is_functorch_wrapped_tensor, filled)):
        return False  # inside of a transform, where memory cannot be asked for
    places = {(piece.untyped_storage()._cdata, piece.storage_offset()) for piece in filled}
    if len(places) != len(filled):
        return False
    repeats = [step == 0 for step in whole.stride()]
    return not any(
        step == 0 and size > 1 and not repeated
        for piece in filled
        for step, size, repeated in zip(piece.stride(), piece.shape, repeats, strict=True)
    )


def _is_expanded(x: torch.Tensor) -> bool:
    return any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True))


def _copied(piece: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A copy of a piece; one of the shape of the whole has its strides, so that views of both are alike."""
    if piece.shape != whole.shape or _is_expanded(whole):
        return piece.clone(memory_format=torch.contiguous_format)
    return torch.empty_strided(piece.shape, whole.stride(), dtype=piece.dtype, device=piece.device).copy_(piece)


@final
class Origin:
    """Where contributions come from: the op that left them pending, and what it read."""

    __slots__ = ("__weakref__", "_compute", "_is_view", "_results", "_writes")

    def __init__(self, compute: Callable[[], object] | None, is_view: bool = False) -> None:
        self._compute, self._is_view = compute, is_view
        self._writes = _writes.last
        self._results: Sequence[ShardedTensor] | None = None
        if compute is not None and not is_view:
            _note_origin(self)

    def forget(self) -> None:
        """Keeps nothing that was read: contributions that were not computed yet are the total, and zeros."""
        self._compute = None

    def contributions(self, k: int, total: torch.Tensor, layout: Layout) -> Pieces:
        """The pieces of the k-th result."""
        # A view is one of whatever its base has now. Other ops are computed again only from what they have read: not after
        # a write to any tensor, since versions do not tell of all writes to what tensors share (`x.data`).
        compute = self._compute
        if self._results is None and (compute is None or (not self._is_view and self._writes != _writes.last)):
            self._compute = None  # what it read has other values by now
            return _total_and_zeros(total, layout)
        with torch.inference_mode(total.is_inference()), torch.no_grad():
            if self._results is None:
                assert compute is not None
                result = compute()
                self._results = list(result) if isinstance(result, (tuple, list)) else [result]  # type: ignore[list-item]
                self._compute = None  # only now: who finds nothing to compute with finds the results
            pieces = self._results[k]._value.pieces
            return pieces if self._is_view else _owned(pieces, total)


def _total_and_zeros(total: torch.Tensor, layout: Layout) -> Pieces:
    return _owned(fill_pending(lazy_clone(total), layout), total)


UNKNOWN = Origin(None)
"""Where contributions come from that nobody can compute again: they are the total, and zeros."""


@final
class Contributions:
    """The pieces of a pending tensor whose total is known."""

    __slots__ = ("_k", "_layout", "_origin", "_total")

    def __init__(self, origin: Origin, k: int, total: torch.Tensor, layout: Layout) -> None:
        self._origin, self._k, self._total, self._layout = origin, k, total, layout

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return True

    def wait(self) -> Pieces:
        """Computes them."""
        return self._origin.contributions(self._k, self._total, self._layout)


@final
class SoleContributions:
    """The pieces of the one result of an op that has left it pending: `Contributions` and its `Origin` in one, made in half the time.

    `again` gives the result anew of what the op read, which is None where that is not kept.
    """

    __slots__ = ("__weakref__", "_again", "_kwargs", "_layout", "_pieces", "_read", "_total", "_writes")

    def __init__(
        self,
        again: Callable[[Sequence[object], Mapping[str, object]], object],
        read: Sequence[object] | None,
        kwargs: Mapping[str, object],
        total: torch.Tensor,
        layout: Layout,
    ) -> None:
        self._again, self._read, self._kwargs, self._total, self._layout = again, read, kwargs, total, layout
        self._writes = _writes.last
        self._pieces: Pieces | None = None
        if read is not None:
            _origins.append(ref(self))  # as `_note_origin` does, in less time
            if len(_origins) > _MOST_ORIGINS:
                _forget_oldest()

    def forget(self) -> None:
        """Keeps nothing that was read: contributions that were not computed yet are the total, and zeros."""
        self._read = None

    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return True

    def wait(self) -> Pieces:
        """Computes them."""
        read, total = self._read, self._total
        if self._pieces is None and (read is None or self._writes != _writes.last):
            self._read = None  # what it read has other values by now
            return _total_and_zeros(total, self._layout)
        with torch.inference_mode(total.is_inference()), torch.no_grad():
            if self._pieces is None:
                assert read is not None
                result: ShardedTensor = self._again(read, self._kwargs)  # type: ignore[assignment]
                self._pieces = result._value.pieces
                self._read = None  # only now: who finds nothing to compute with finds the pieces
            return _owned(self._pieces, total)


def _owned(pieces: Pieces, total: torch.Tensor) -> Pieces:
    """Contributions with memory of their own and the strides of the total."""
    if _is_expanded(total):
        return pieces  # nobody can write to it
    if _are_parted(pieces, total) and all(piece.stride() == total.stride() for piece in pieces):
        return pieces
    return tuple(_copied(piece, total) for piece in pieces)
