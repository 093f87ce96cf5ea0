"""Renewals: once a process has left an exchange in the middle, all go on by new connections, and count their calls anew."""

from __future__ import annotations

from collections.abc import Callable

from torch._C import _distributed_c10d as c10d

from . import world
from .store_client import own_connection

__all__ = ["forget_on_renewal", "number", "renew", "store_of_calls"]

_listeners: list[Callable[[], None]] = []
"""Bound: the calls of `forget_on_renewal`, one where a module is imported. Cleared: never."""
_number = 0


def number() -> int:
    """How often the processes have begun anew, which is the same in all that communicate."""
    return _number


def renew(to: int) -> None:
    """Begins anew: what is under way belongs to nothing that follows."""
    global _number  # noqa: PLW0603 - one a process
    if to != _number:
        _number = to
        for listener in _listeners:
            listener()


def forget_on_renewal(clear: Callable[[], None]) -> None:
    """Registers what counts calls, or carries them: it holds among the same processes, as long as they are in step."""
    _listeners.append(clear)
    world.forget_on_change(clear)


def store_of_calls() -> c10d.Store:
    """Where processes leave each other notes about calls that they count."""
    if not _number:
        return world.store()
    # A thread of the time before may wait for others who will never come, and would let nobody else ask meanwhile.
    return c10d.PrefixStore(f"renewal {_number}", own_connection(world.store()))


def _reset() -> None:
    global _number  # noqa: PLW0603 - one a process
    _number = 0


world.forget_on_change(_reset)
