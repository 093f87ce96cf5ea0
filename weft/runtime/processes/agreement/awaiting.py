"""`awaited`: what other processes will leave in the store, waited for in turns that a signal can interrupt."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch._C import _distributed_c10d as c10d

from ..group import Processes
from ..liveness.waiting import TURN, Patience, in_time
from ..store_client import StoreRequest

__all__ = ["awaited"]

_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.02
"""Seconds between requests to the store: the others mostly come at once, or only much later."""


def awaited(
    store: c10d.Store,
    keys: Sequence[str],
    processes: Processes,
    *,
    mine: tuple[str, str] | None = None,
    past: str | None = None,
) -> list[bytes]:
    """What these processes leave under some keys.

    `mine` is what this one leaves first, a key and a value; `past` is a key that nobody reads any more once the others are there.
    """
    patience = Patience(processes)
    is_over = False

    def ask() -> list[bytes]:
        """Asks again and again: a wait of the store would say aloud each time that it waits."""
        if mine is not None:
            store.set(*mine)
        pause = _FIRST_PAUSE
        while not store.check(list(keys)):
            if is_over:
                return []
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        found = store.multi_get(list(keys))
        if past is not None:
            store.delete_key(past)
        return found

    request = StoreRequest(ask)
    try:
        while not request.wait(TURN.total_seconds()):
            # Who has left may have told before: that was a turn ago.
            if patience.is_over or patience.is_in_vain:
                raise patience.lost()
            patience.take_turn()
    finally:
        is_over = True
    return in_time(request.answer, processes)
