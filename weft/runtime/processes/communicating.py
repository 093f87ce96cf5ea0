"""`communicating`: what surrounds every call that communicates."""

from __future__ import annotations

import threading
from types import TracebackType

from . import current_call
from .agreement.in_step import meet_if_apart
from .agreement.same_call import check
from .current_call import CollectiveCall
from .fork import check_is_no_child
from .group import Processes
from .liveness import heartbeat, own_refusals
from .transport.async_ops import settle

__all__ = ["communicating", "one_at_a_time"]

one_at_a_time = threading.RLock()
"""Held for a whole call: what threads communicate does not mix. In which order they come is up to the program."""


class communicating:  # noqa: N801 - read as a word: `with communicating(call, processes):`
    """Notes what this process does while it communicates, and checks that the others do the same.

    Calls of several threads are made one after another, each as a whole.
    """

    def __init__(self, call: CollectiveCall, processes: Processes, *, is_compared: bool = False) -> None:
        self._call, self._processes, self._is_compared = call, processes, is_compared

    def __enter__(self) -> None:
        check_is_no_child(self._call)
        settle()  # before the lock, which what is under way needs
        one_at_a_time.acquire()
        try:
            heartbeat.begin()
            current_call.started(self._call)
            meet_if_apart()
            own_refusals.entered(self._processes)
            check(self._call, self._processes, is_compared=self._is_compared)
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        own_refusals.left()
        current_call.finished()
        one_at_a_time.release()
