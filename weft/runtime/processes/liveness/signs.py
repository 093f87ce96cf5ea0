"""`Sign`: what is known of another process, and how a process that waits finds out."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from ..current_call import CollectiveCall
from .heartbeat import begin

__all__ = ["Observer", "Sign"]


@final
@dataclass(frozen=True, slots=True)
class Sign:
    """What is known of another process."""

    process: int
    alive: bool
    call: CollectiveCall | None = None
    """What it communicates now."""
    last: CollectiveCall | None = None
    """What it communicated before."""
    left: bool = False
    failure: str | None = None
    """The error that ended its program."""
    gave_up: CollectiveCall | None = None
    """What it was in when it lost contact with others."""

    @property
    def is_to_blame(self) -> bool:
        """Whether it is this process that others wait for in vain."""
        return self.failure is not None or (self.left and self.gave_up is None) or not self.alive

    def is_elsewhere(self, call: CollectiveCall) -> bool:
        """Whether this process makes, or has given up on, another call."""
        theirs = self.call or self.gave_up
        return theirs is not None and not theirs.is_like(call)

    def __str__(self) -> str:
        who = f"process {self.process}"
        before = "" if self.last is None else f" Its last call was {self.last}."
        if self.failure is not None:
            return f"{who} has failed: {self.failure}"
        if self.gave_up is not None and (self.left or self.call is None):
            return f"{who} has lost contact with other processes, too, in {self.gave_up}"
        if self.left:
            return f"{who} has left: its program has ended, or called weft.distributed.shutdown.{before}"
        if not self.alive:
            return f"{who} shows no sign of life: it was killed or stopped, or cannot be reached.{before}"
        if self.call is not None:
            return f"{who} is in another call: {self.call}"
        return f"{who} is alive, but has not come here: it computes, or waits for something else.{before}"


@final
class Observer:
    """Looks at the signs of other processes while one waits for them."""

    def __init__(self, processes: Iterable[int]) -> None:
        heartbeat = begin()
        assert heartbeat is not None
        self._heartbeat = heartbeat
        self._patience = 3 * heartbeat.beat
        self._notes = heartbeat.notes(processes)
        self._changed: dict[int, float] = {}
        self._since = time.monotonic()

    def look(self) -> None:
        """Sees who has left another sign."""
        now = time.monotonic()
        for process, note in self._heartbeat.notes(self._notes).items():
            if note != self._notes[process]:
                self._notes[process], self._changed[process] = note, now

    @property
    def notes(self) -> dict[int, dict[str, object]]:
        """The last signs of each process."""
        return self._notes

    @property
    def is_in_vain(self) -> bool:
        """Whether one of them has said that it will not come any more."""
        return any(note.get("left") or note.get("failure") for note in self._notes.values())

    def signs(self) -> list[Sign]:
        """What is known of each process; who leaves no other sign for three beats is not alive."""
        while True:
            self.look()
            now = time.monotonic()
            waiting = now - self._since < self._patience and any(
                process not in self._changed and not note.get("left") for process, note in self._notes.items()
            )
            if not waiting:
                break
            time.sleep(self._heartbeat.beat / 5)
        alive = {process for process, when in self._changed.items() if now - when < self._patience}
        return [_sign(process, note, alive=process in alive) for process, note in self._notes.items()]


def _sign(process: int, note: dict[str, object], *, alive: bool) -> Sign:
    failure = note.get("failure")
    return Sign(
        process,
        alive,
        CollectiveCall.from_json(note.get("call")),
        CollectiveCall.from_json(note.get("last")),
        note.get("left") is True,
        failure if isinstance(failure, str) else None,
        CollectiveCall.from_json(note.get("gave_up")),
    )
