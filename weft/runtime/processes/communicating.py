"""`communicating`: what surrounds every call that communicates."""

from __future__ import annotations

from types import TracebackType

from . import current_call
from .agreement.same_call import check
from .current_call import CollectiveCall
from .fork import check_is_no_child
from .group import Processes
from .liveness import heartbeat
from .transport.async_ops import settle

__all__ = ["communicating"]


class communicating:  # noqa: N801 - read as a word: `with communicating(call, processes):`
    """Notes what this process does while it communicates, and checks that the others do the same."""

    def __init__(self, call: CollectiveCall, processes: Processes) -> None:
        self._call, self._processes = call, processes

    def __enter__(self) -> None:
        check_is_no_child(self._call)
        settle()
        heartbeat.begin()
        current_call.started(self._call)
        check(self._call, self._processes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_call.finished()
