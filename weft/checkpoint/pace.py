"""`Pace`: how a thread in the background learns that others need the cores, and how long it rests then."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import final

__all__ = ["Pace"]

_REST = 99.0
"""Seconds of rest for one of work where cores are busy: a hundredth of a core is taken even then, so that the work ends."""
_BUSY = 0.25
"""Cores are busy if a thread waits for one so long, as a part of the time that it works."""


@final
class Pace:
    """Asked by a thread after each bit of its work, says how long it should rest: not at all while a core is free for it.

    Linux counts how long a thread has been ready to run, and was not running. Elsewhere cores are taken to be free.

    >>> with Pace() as pace:
    ...     done = sum(range(1000))
    ...     pace.rest() >= 0
    True
    """

    def __init__(self) -> None:
        self._file: int | None = None
        if sys.platform == "linux":
            try:
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # a kernel that does not count
                self._file = None
        self._worked, self._queued = time.thread_time(), self._queue_time()

    def __enter__(self) -> Pace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def rest(self) -> float:
        """Seconds to rest after what this thread has done since it asked last."""
        now, queue = time.thread_time(), self._queue_time()
        worked, queued = now - self._worked, queue - self._queued
        self._worked, self._queued = now, queue
        return _REST * worked if queued > _BUSY * worked else 0.0

    def _queue_time(self) -> float:
        """Seconds that this thread has waited for a core."""
        return 0.0 if self._file is None else int(os.pread(self._file, 100, 0).split()[1]) / 1e9
