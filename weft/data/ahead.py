"""`ahead`: a thread takes things from an iterable before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Full, Queue
from typing import TypeVar

__all__ = ["ahead"]

T = TypeVar("T")
_TURN = 0.2
"""Seconds after which the thread looks whether anybody still wants what it takes."""


def ahead(source: Iterable[T], count: int) -> Generator[T, None, None]:
    """The same things in the same order, up to `count` of them taken before they are asked for; 0: none, and no thread.

    >>> list(ahead(range(3), 2))
    [0, 1, 2]
    """
    if not count:
        yield from source
        return
    taken: Queue[tuple[T | None, BaseException | None, bool]] = Queue(count)
    is_over = threading.Event()

    def give(item: T | None, error: BaseException | None = None, *, last: bool = False) -> bool:
        while not is_over.is_set():
            try:
                taken.put((item, error, last), timeout=_TURN)
            except Full:
                continue
            return True
        return False

    def take() -> None:
        try:
            for item in source:
                if not give(item):
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised where the next thing is asked for
            give(None, error, last=True)
        else:
            give(None, last=True)

    thread = threading.Thread(target=take, name="weft-data", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error, last = taken.get(timeout=_TURN)
            except Empty:
                continue
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]
    finally:
        is_over.set()
        thread.join()
