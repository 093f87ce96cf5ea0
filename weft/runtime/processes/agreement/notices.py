"""Notices: what one process writes down once, and others read when they need it. As JSON; nothing is ever unpickled."""

from __future__ import annotations

import json
import time

from torch._C import _distributed_c10d as c10d

from ....caches import cached
from .. import world
from ..liveness.waiting import TURN, Patience, in_time
from ..store_client import StoreRequest, own_connection

__all__ = ["notice", "write_notice"]

_FIRST_PAUSE, _LAST_PAUSE = 0.0002, 0.02
"""Seconds between requests to the store."""


@cached(1, cleared_by=world.forget_on_change)
def _store() -> c10d.Store:
    return c10d.PrefixStore("notices", own_connection(world.store()))


def write_notice(name: str, value: object) -> None:
    """Writes down what JSON has words for, under a name that nothing was written under before."""
    _store().set(name, json.dumps(value))


def notice(name: str, writer: int) -> object:
    """What a process has written down under a name; waits for it, in turns that a signal can interrupt."""
    store, patience = _store(), Patience((writer,))
    is_over: list[bool] = []
    request = StoreRequest(lambda: _read(store, name, is_over))
    try:
        while not request.wait(TURN.total_seconds()):
            if patience.is_over or patience.is_in_vain:
                raise patience.lost()
            patience.take_turn()
    finally:
        is_over.append(True)
    return json.loads(in_time(request.answer, (writer,)))


def _read(store: c10d.Store, name: str, is_over: list[bool]) -> bytes:
    """Asks again and again: a wait of the store would say aloud each time that it waits."""
    pause = _FIRST_PAUSE
    while not store.check([name]):
        if is_over:
            return b"null"
        time.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)
    return bytes(store.get(name))
