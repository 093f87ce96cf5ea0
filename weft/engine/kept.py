"""What was brought last: a tensor that an op needed in another layout, kept for the next op that needs it there.

Three projections of one input gather it once, and a gradient that several ops read is brought back once. One tensor is kept
in each thread: until another is brought, until its source is written to, or until nobody has the source any more. What is
found here depends on the calls of a program alone, so that all processes find it or none does.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, final

import torch

from ..rules.call import each_of
from ..runtime.holding import Pieces

if TYPE_CHECKING:
    from .sharded import ShardedTensor

__all__ = ["Kept", "Storages", "forget_written", "keep", "last_kept", "memory_of", "share_nothing"]

Storages = tuple[torch.UntypedStorage, ...]
Watchers = tuple[object, ...]


@final
class Kept:
    """A tensor that was brought, and the memory that it was brought from."""

    __slots__ = ("__weakref__", "_sources", "key", "order", "result", "watchers")

    def __init__(
        self, key: object, sources: Storages, order: tuple[int, ...], result: ShardedTensor, watchers: Watchers
    ) -> None:
        self.key, self.order = key, order
        self.watchers: Watchers = watchers
        """Who was told of it."""
        self.result: ShardedTensor | None = result
        """None once it is of no use any more."""
        self._sources = tuple([weakref.ref(source, self._lost) for source in sources])

    def _lost(self, _: object) -> None:
        self.drop()

    def drop(self) -> None:
        """Lets the tensor go."""
        self.result = None
        self.watchers = ()
        self._sources = ()

    def is_from(self, memory: Storages) -> bool:
        """Whether it was brought from this memory."""
        known = self._sources
        return len(known) == len(memory) and all(ref() is each for ref, each in zip(known, memory, strict=True))

    def touches(self, memory: Iterable[torch.UntypedStorage]) -> bool:
        """Whether it was brought from some of this memory."""
        mine = [ref() for ref in self._sources]
        return any(each is own for each in memory for own in mine)


class _Here(threading.local):
    last: Kept | None = None


_here = _Here()
_all: weakref.WeakSet[Kept] = weakref.WeakSet()
"""Those of all threads. Bound: one for each. Cleared: each when its thread keeps another."""
_changing = threading.Lock()


@final
class _Threads:
    """Whether any may keep something: every write asks, and most programs keep nothing while they write."""

    __slots__ = ("keep",)

    def __init__(self) -> None:
        self.keep = False


_threads = _Threads()


def last_kept() -> Kept | None:
    """What this thread keeps."""
    kept = _here.last
    return None if kept is None or kept.result is None else kept


def keep(kept: Kept | None) -> None:
    """Keeps a tensor in this thread, and lets the one before go."""
    before = _here.last
    if before is not None:
        before.drop()
    _here.last = kept
    if kept is not None:
        with _changing:
            _all.add(kept)
            _threads.keep = True


def forget_written(written: Iterable[ShardedTensor] | None) -> None:
    """Before a write to these tensors, or to nobody knows which: what was brought of their memory is another value then."""
    if not _threads.keep:
        return
    with _changing:
        alive = [kept for kept in _all if kept.result is not None]
        _threads.keep = bool(alive)
    if alive:
        memory = None if written is None else [storage for x in written for storage in storages(x)]
        for kept in alive:
            if memory is None or kept.touches(memory):
                kept.drop()


def storages(x: ShardedTensor) -> Storages:
    """The memory that a tensor has here, which may be none yet."""
    value = x._value
    total = () if value.total is None else (value.total.value,)
    return memory_of(x, (*total, *value.pieces)) if value.is_made else memory_of(x, total)


def memory_of(x: ShardedTensor, held: Pieces) -> Storages:
    """The memory of what is held of a tensor here; where a mesh leaves this process out, what stands for the tensor's."""
    value = x._value
    if held or not value.is_made:
        return tuple([piece.untyped_storage() for piece in held])
    if value.nowhere is None:
        value.nowhere = torch.UntypedStorage(0)
    return (value.nowhere,)


def share_nothing(x: ShardedTensor, views: object) -> None:
    """Lets views of a tensor that has no memory here stand for the same memory as the tensor does."""
    if x._value.is_made and not x._value.pieces:
        (nowhere,) = memory_of(x, ())
        for each in each_of(views):
            value = getattr(each, "_value", None)
            if value is not None:
                value.nowhere = nowhere
