"""`Setting`: a value of one thread or task, which holds in the backward passes that it starts too."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Generic, TypeVar, final

import torch

__all__ = ["Setting"]

T = TypeVar("T")


@final
class Setting(Generic[T]):
    """What one thread or task has set, and no other sees; torch's threads for backward passes follow who called them.

    >>> depth = Setting("depth", 0)
    >>> before = depth.get()
    >>> depth.set(3)
    >>> depth.get(), before
    (3, 0)
    >>> depth.set(before)
    """

    __slots__ = ("_default", "_key", "_own")

    def __init__(self, name: str, default: T) -> None:
        self._own: ContextVar[tuple[T] | None] = ContextVar(name, default=None)
        self._key, self._default = f"weft.{name}", default

    def get(self) -> T:
        """The value that holds here."""
        own = self._own.get()
        if own is not None:
            return own[0]
        if torch._C._is_key_in_tls(self._key):
            # Torch hands this on to its threads; in the thread that said it, it may be another task's.
            thread, value = torch._C._get_obj_in_tls(self._key)
            if thread != threading.get_ident():
                return value  # type: ignore[no-any-return]
        return self._default

    def set(self, value: T) -> None:
        """Sets it for this thread or task."""
        self._own.set((value,))
        torch._C._stash_obj_in_tls(self._key, (threading.get_ident(), value))
