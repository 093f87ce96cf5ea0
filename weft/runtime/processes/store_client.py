"""Requests to the store, which may never answer: a thread asks, and whoever waits for it can stop waiting.

Torch's store has no limit on how long most of its calls take; where its host cannot be reached, they never return.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Generic, TypeVar, final

from torch._C import _distributed_c10d as c10d

from ...errors import TimeoutError  # noqa: A004 - the one of this package
from . import fork, world

__all__ = ["REPLY", "StoreRequest", "ask", "own_connection"]

REPLY = timedelta(seconds=5)
"""How long the store may take for an answer."""
T = TypeVar("T")


@final
class StoreRequest(Generic[T]):
    """A request that a thread makes, and its outcome once there is one."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        _hand_over(self)

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._answer.append(self._action())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            self._error = error

    def end(self) -> None:
        """Lets those that wait go on."""
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Whether there is an outcome, after at most so many seconds."""
        return self._ended.wait(seconds)

    def answer(self) -> T:
        """The outcome; raises what the action raised."""
        if self._error is not None:
            raise self._error
        return self._answer[0]


def ask(action: Callable[[], T], limit: timedelta = REPLY) -> T:
    """What an action gives, or a RuntimeError if it takes too long; then it is left alone.

    >>> ask(lambda: 1 + 1)
    2
    """
    request = StoreRequest(action)
    if not request.wait(limit.total_seconds()):
        raise RuntimeError(f"the store has not answered within {limit.total_seconds():g} s")
    return request.answer()


@final
class _StoreThread:
    """A thread that makes one request after another, as long as it gets answers."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[StoreRequest[object]] = SimpleQueue()
        threading.Thread(target=self._run, name="weft-store", daemon=True).start()

    def _run(self) -> None:
        while True:
            request = self.requests.get()
            request.run()
            _idle.append(self)
            request.end()
            del request


_idle: list[_StoreThread] = []
"""Bound: the requests that were under way at once. Cleared: in a child that is forked."""


def _hand_over(request: StoreRequest[T]) -> None:
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _StoreThread()
    thread.requests.put(request)  # type: ignore[arg-type]


# The threads are the parent's: a child starts its own.
fork.on_fork(_idle.clear)


def own_connection(store: c10d.Store) -> c10d.Store:
    """A connection of its own, where the store can have one: one that waits in a thread would block the others."""
    clone = getattr(store, "clone", None)
    if clone is None:
        return store
    try:
        found: c10d.Store = clone()
    except RuntimeError as error:
        where = f"{os.environ.get('MASTER_ADDR', 'an unknown host')}:{os.environ.get('MASTER_PORT', '?')}"
        lost = TimeoutError(
            f"process {world.current().process} cannot reach the store at {where}, through which processes find each other: "
            "its host or the network is down, or the process that keeps it has ended."
        )
        lost.add_note(f"The store says: {str(error).strip().splitlines()[0]}")
        raise lost from None
    return found
