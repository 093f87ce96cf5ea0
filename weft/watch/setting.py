"""`Setting`: a value of one thread or task, which holds in the backward passes that it starts too."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import ClassVar, Generic, TypeVar, final

import torch

__all__ = ["Setting"]

T = TypeVar("T")


@final
class Setting(Generic[T]):
    """What one thread or task has set, and no other sees.

    Backward passes on GPUs run in threads of torch's own, which do not say who called them: there, the value counts that
    was set last.

    >>> depth = Setting("depth", 0)
    >>> before = depth.set(3)
    >>> depth.get()
    3
    >>> depth.restore(before)
    >>> depth.get()
    0
    """

    __slots__ = ("_default", "_own", "_said")

    is_used: ClassVar[bool] = False
    """Whether any was ever set to something else than its default; until then nobody need ask, which some do all the time."""

    def __init__(self, name: str, default: T) -> None:
        self._own: ContextVar[tuple[T] | None] = ContextVar(name, default=None)
        self._said: dict[int, T] = {}
        """By thread, what is set there and is not the default."""
        self._default = default

    def get(self) -> T:
        """The value that holds here."""
        own = self._own.get()
        if own is not None:
            return own[0]
        said = list(self._said.values()) if self._said and _is_of_torch() else ()
        return said[-1] if said else self._default

    def set(self, value: T) -> tuple[T] | None:
        """Sets it for this thread or task; gives what `restore` takes."""
        before = self._own.get()
        self._put((value,))
        return before

    def restore(self, before: tuple[T] | None) -> None:
        """Sets it to what it was before; where this thread had set nothing, what others have set counts there again."""
        self._put(before)

    def _put(self, own: tuple[T] | None) -> None:
        self._own.set(own)
        thread = threading.get_ident()
        self._said.pop(thread, None)
        if own is not None and own[0] != self._default:
            Setting.is_used = True
            self._said[thread] = own[0]


def _is_of_torch() -> bool:
    """Whether this is a thread of torch's own that runs a backward pass: Python knows no more of it than that it is there."""
    in_backward = torch._C._current_graph_task_id() != -1
    return in_backward and isinstance(threading.current_thread(), threading._DummyThread)
