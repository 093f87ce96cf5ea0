"""`Notes`: what processes leave each other in the store about one call.

Not in the collective itself, which a process that calls something else would confuse.
"""

from __future__ import annotations

from typing import final

from torch._C import _distributed_c10d as c10d

from ....caches import cached
from .. import renewal, world
from ..group import Processes
from ..store_client import own_connection
from .awaiting import awaited
from .in_step import meet_if_apart

__all__ = ["Notes", "notes_about"]


@cached(1, cleared_by=renewal.forget_on_renewal)
def _store() -> c10d.Store:
    return c10d.PrefixStore("check", own_connection(renewal.store_of_calls()))


@final
class Notes:
    """What some processes tell each other on one subject, number after number."""

    def __init__(self, subject: str, processes: Processes) -> None:
        self._processes, self._here = processes, world.current().process
        self._members = f"{subject}/{'_'.join(map(str, processes))}"
        self._number = 0

    def exchanged(self, mine: str) -> dict[int, bytes]:
        """What the others say, once they all have."""
        self._number += 1
        others = [process for process in self._processes if process != self._here]
        # All have told of the last call, so all have read about the one before it.
        past = self._key(self._number - 2, self._here) if self._number > 2 else None
        keys = [self._key(self._number, process) for process in others]
        notes = awaited(_store(), keys, self._processes, mine=(self._key(self._number, self._here), mine), past=past)
        return dict(zip(others, notes, strict=True))

    def _key(self, number: int, process: int) -> str:
        return f"{self._members}/{number}/{process}"


_notes: dict[tuple[str, Processes], Notes] = {}
"""Bound: two subjects for each set of processes. Cleared: when this process joins or leaves."""
renewal.forget_on_renewal(_notes.clear)


def notes_about(subject: str, processes: Processes) -> Notes:
    """The notes of these processes on one subject, of which they keep count; they are in step then, and count alike."""
    meet_if_apart()
    key = (subject, processes)
    if key not in _notes:
        _notes[key] = Notes(subject, processes)
    return _notes[key]
