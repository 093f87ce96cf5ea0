"""`Notes`: what processes leave each other in the store about one call.

Not in the collective itself, which a process that calls something else would confuse.
"""

from __future__ import annotations

import time
from typing import final

from torch._C import _distributed_c10d as c10d

from ....caches import cached
from .. import world
from ..group import Processes
from ..liveness.waiting import TURN, Patience, in_time
from ..store_client import StoreRequest, own_connection

__all__ = ["Notes", "notes_about"]

FIRST_PAUSE, LAST_PAUSE = 0.0002, 0.02
"""Seconds between requests to the store: the others mostly come at once, or only much later."""


@cached(1, cleared_by=world.forget_on_change)
def _store() -> c10d.Store:
    return c10d.PrefixStore("check", own_connection(world.store()))


@final
class Notes:
    """What some processes tell each other on one subject, number after number."""

    def __init__(self, subject: str, processes: Processes) -> None:
        self._processes, self._here = processes, world.current().process
        self._members = f"{subject}/{'_'.join(map(str, processes))}"
        self._number = 0
        self._is_over = False

    def exchanged(self, mine: str) -> dict[int, bytes]:
        """What the others say, once they all have; waits in turns that a signal can interrupt."""
        self._number += 1
        self._is_over = False
        store = _store()
        patience = Patience(self._processes)
        request = StoreRequest(lambda: self._ask(store, self._number, mine))
        try:
            while not request.wait(TURN.total_seconds()):
                # Who has left may have told before: that was a turn ago.
                if patience.is_over or patience.is_in_vain:
                    raise patience.lost()
                patience.take_turn()
        finally:
            self._is_over = True
        return in_time(request.answer, self._processes)

    def _ask(self, store: c10d.Store, number: int, mine: str) -> dict[int, bytes]:
        """Asks again and again: a wait of the store would say aloud each time that it waits."""
        store.set(self._key(number, self._here), mine)
        others = [process for process in self._processes if process != self._here]
        keys = [self._key(number, process) for process in others]
        pause = FIRST_PAUSE
        while not store.check(keys):
            if self._is_over:
                return {}
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
        notes = store.multi_get(keys)
        if number > 2:  # all have told of the last call, so all have read about the one before it
            store.delete_key(self._key(number - 2, self._here))
        return dict(zip(others, notes, strict=True))

    def _key(self, number: int, process: int) -> str:
        return f"{self._members}/{number}/{process}"


_notes: dict[tuple[str, Processes], Notes] = {}
"""Bound: two subjects for each set of processes. Cleared: when this process joins or leaves."""
world.forget_on_change(_notes.clear)


def notes_about(subject: str, processes: Processes) -> Notes:
    """The notes of these processes on one subject, of which they keep count."""
    key = (subject, processes)
    if key not in _notes:
        _notes[key] = Notes(subject, processes)
    return _notes[key]
