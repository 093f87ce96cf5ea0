"""Do all processes make the same call? They tell each other before they make it, the first time or every time.

What they tell goes through the launcher's store and not through the collective itself, which a process that calls
something else would confuse.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import final

from torch._C import _distributed_c10d as c10d

from ....errors import MismatchError
from .. import current_call, world
from ..current_call import CollectiveCall
from ..group import Processes
from ..liveness import heartbeat
from ..liveness.waiting import TURN, Patience, in_time
from ..store_client import StoreRequest, own_connection

__all__ = ["check"]

FIRST_PAUSE, LAST_PAUSE = 0.0002, 0.02
"""Seconds between requests to the store: the others mostly come at once, or only much later."""

MOST = 256
"""How many kinds of one op are compared: a program whose sizes never repeat does not wait for the store for ever."""

_seen: set[tuple[Processes, str, str]] = set()
_kinds: dict[tuple[Processes, str], int] = {}
_counts: dict[Processes, int] = {}


def _forget(_: object) -> None:
    _seen.clear()
    _kinds.clear()
    _counts.clear()
    _store.cache_clear()


world.on_change(_forget)


@lru_cache(maxsize=1)
def _store() -> c10d.Store:
    return c10d.PrefixStore("check", own_connection(world.store()))


def is_always_on() -> bool:
    """Whether every call is checked, not only the first of each kind."""
    return os.environ.get("WEFT_CHECK", "0") not in ("", "0", "off")


def is_off() -> bool:
    """Whether no call is checked."""
    return os.environ.get("WEFT_CHECK") == "off"


Difference = Callable[[CollectiveCall, int, CollectiveCall, int], MismatchError]
"""The error for two processes that differ: the call of this one, its index, and those of the other."""


def check(
    call: CollectiveCall, processes: Processes, value: str | None = None, differs: Difference | None = None
) -> None:
    """Raises `MismatchError` if one of these processes makes another call, or the same with another value."""
    if len(processes) == 1 or world.current().is_fake or is_off():
        return
    if not is_always_on() and not _is_new(call, processes):
        return
    if value is None:
        call = current_call.current() or call  # with where it was made
    count = _counts[processes] = _counts.get(processes, 0) + 1
    here = world.current()
    exchange = _Exchange(processes, count, here.process, json.dumps({**call.to_json(), "value": value}))
    for process, note in exchange.notes().items():
        words = json.loads(note)
        theirs = CollectiveCall.from_json(words)
        if theirs is not None and not theirs.is_like(call):
            raise _mismatch(call, here.process, theirs, process)
        if theirs is not None and differs is not None and words["value"] != value:
            raise differs(call, here.process, theirs, process)


def _is_new(call: CollectiveCall, processes: Processes) -> bool:
    """Whether this kind of call has not been made before; of ops with very many kinds, none is after some time."""
    key = (processes, call.op, call.what)
    if key in _seen:
        return False
    op = (processes, call.op.partition(" ")[0])
    if _kinds.get(op, 0) >= MOST:
        return False
    _kinds[op] = _kinds.get(op, 0) + 1
    _seen.add(key)
    return True


@final
class _Exchange:
    """Notes that processes leave each other about one call."""

    def __init__(self, processes: Processes, count: int, here: int, mine: str) -> None:
        self._processes, self._count, self._here, self._mine = processes, count, here, mine
        self._members = "_".join(map(str, processes))
        self._store = _store()
        self._is_over = False

    def notes(self) -> dict[int, bytes]:
        """What the others say, once they all have; waits in turns that a signal can interrupt."""
        patience = Patience(self._processes)
        request = StoreRequest(self._ask)
        try:
            while not request.wait(TURN.total_seconds()):
                # Who has left may have told before: that was a turn ago.
                if patience.is_over or patience.is_in_vain:
                    raise patience.lost()
                patience.take_turn()
        finally:
            self._is_over = True
        return in_time(request.answer, self._processes)

    def _ask(self) -> dict[int, bytes]:
        """Asks again and again: a wait of the store would say aloud each time that it waits."""
        store, count = self._store, self._count
        store.set(self._key(count, self._here), self._mine)
        others = [process for process in self._processes if process != self._here]
        keys = [self._key(count, process) for process in others]
        pause = FIRST_PAUSE
        while not store.check(keys):
            if self._is_over:
                return {}
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
        notes = store.multi_get(keys)
        if count > 2:  # all have told of the last call, so all have read about the one before it
            store.delete_key(self._key(count - 2, self._here))
        return dict(zip(others, notes, strict=True))

    def _key(self, count: int, process: int) -> str:
        return f"{self._members}/{count}/{process}"


def _mismatch(call: CollectiveCall, here: int, other: CollectiveCall, process: int) -> MismatchError:
    error = MismatchError(
        "processes make different calls:\n"
        f"  process {here}: {call}\n"
        f"  process {process}: {other}\n"
        "  Every process has to make the same calls in the same order."
    )
    heartbeat.note_failure(f"it made another call than process {process}: {call}")
    return error
