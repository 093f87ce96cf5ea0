"""A bar that shows how many bytes are written or read, in the first process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.errors import LiveError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ..distributed import on_main

__all__ = ["Count", "shown"]


class Count:
    """How many bytes of how many have gone; threads may count at once.

    >>> count = Count(10)
    >>> count(4)
    >>> count.done, count.total
    (4, 10)
    """

    def __init__(self, total: int, also: Callable[[int], object] | None = None) -> None:
        self.total, self.done = total, 0
        self._also, self._lock = also, threading.Lock()

    def __call__(self, nbytes: int) -> None:
        with self._lock:
            self.done += nbytes
        if self._also is not None:
            self._also(nbytes)


@contextmanager
def shown(what: str, total: int, wanted: bool, *, here: bool | None = None) -> Iterator[Count]:
    """A count, with a bar if one is wanted; `here`: whether it is shown by this process, where that is not the first one."""
    if not wanted or not (on_main() if here is None else here):
        yield Count(total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with ExitStack() as stack:
        try:
            bar = stack.enter_context(Progress(*columns))
        except LiveError:  # rich before 14.1 shows one bar at a time, and the program has one
            yield Count(total)
            return
        task = bar.add_task(what, total=total)
        yield Count(total, lambda nbytes: bar.advance(task, nbytes))
