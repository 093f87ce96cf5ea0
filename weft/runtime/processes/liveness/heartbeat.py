"""`Watch`: signs of life. Every process says now and then that it lives and what it does; whoever waits in vain looks.

The notes are JSON in the launcher's store. A note counts as a sign of life when it changes while one looks, so clocks
of different hosts are never compared.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from torch._C import _distributed_c10d as c10d

from ....errors import TimeoutError  # noqa: A004 - the one of this package
from .. import current_call, fork, world
from ..current_call import Call
from ..store_client import REPLY, asked

__all__ = ["Sign", "Vigil", "begin", "cloned", "note_failure", "note_giving_up", "stop"]

BEAT = 1.0
"""Seconds between signs of life, where the timeout leaves room for several."""


@final
@dataclass(frozen=True, slots=True)
class Sign:
    """What is known of another process."""

    process: int
    alive: bool
    call: Call | None = None
    """What it communicates now."""
    last: Call | None = None
    """What it communicated before."""
    left: bool = False
    failure: str | None = None
    """The error that ended its program."""
    gave_up: Call | None = None
    """What it was in when it lost contact with others."""

    @property
    def is_to_blame(self) -> bool:
        """Whether it is this process that others wait for in vain."""
        return self.failure is not None or (self.left and self.gave_up is None) or not self.alive

    def is_elsewhere(self, call: Call) -> bool:
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
class Watch:
    """A thread that leaves signs of life of this process."""

    def __init__(self, here: world.World) -> None:
        self._here = here
        self._store = c10d.PrefixStore("signs", cloned(world.store()))
        self._ended = threading.Event()
        self._beats = 0
        self._is_cut_off = False
        self._reply = min(REPLY, here.timeout)
        self.beat = min(BEAT, here.timeout.total_seconds() / 5)
        """Seconds between signs of life."""
        self.failure: str | None = None
        self.gave_up: Call | None = None
        self.left = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="weft-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self.beat):
            self._leave(self.note)

    def note(self) -> None:
        """Leaves a sign of life."""
        with self._lock:
            self._beats += 1
            now, before = current_call.current(), current_call.last()
            note = {
                "beat": self._beats,
                "call": None if now is None else now.to_json(),
                "last": None if before is None else before.to_json(),
                "left": self.left,
                "failure": self.failure,
                "gave_up": None if self.gave_up is None else self.gave_up.to_json(),
            }
            self._store.set(str(self._here.process), json.dumps(note))

    def notes(self, processes: Iterable[int]) -> dict[int, dict[str, object]]:
        """The last notes of some processes; an empty one where there is none."""
        wanted = list(processes)
        try:
            return (
                {process: {} for process in wanted}
                if self._is_cut_off
                else asked(lambda: self._read(wanted), self._reply)
            )
        except RuntimeError:
            self._is_cut_off = True
            return {process: {} for process in wanted}

    def _read(self, processes: list[int]) -> dict[int, dict[str, object]]:
        known = [process for process in processes if self._store.check([str(process)])]
        notes = [json.loads(note) for note in self._store.multi_get([str(process) for process in known])]
        found: dict[int, dict[str, object]] = {process: {} for process in processes}
        return found | {process: note for process, note in zip(known, notes, strict=True) if isinstance(note, dict)}

    def try_note(self) -> None:
        """Leaves a sign of life, as long as there is somewhere to leave it."""
        self._leave(lambda: asked(self.note, self._reply))

    def _leave(self, note: Callable[[], None]) -> None:
        if self._is_cut_off:
            return
        try:
            note()
        except RuntimeError:
            self._is_cut_off = True

    def end(self) -> None:
        """Says farewell."""
        self._ended.set()
        self.left = True
        self.try_note()


_watch: Watch | None = None


def begin() -> None:
    """Begins to leave signs of life, if that has not begun."""
    global _watch  # noqa: PLW0603 - one watch a process
    if _watch is None and not world.current().is_fake:
        _watch = Watch(world.current())


def stop(*, linger: bool) -> None:
    """Says farewell to the others; who keeps the store for them waits until they have, too."""
    global _watch
    watch, _watch = _watch, None
    if watch is None:
        return
    watch.end()
    if linger:
        _wait_for_farewells(watch)


def _wait_for_farewells(watch: Watch) -> None:
    here = world.current()
    last: dict[int, dict[str, object]] = {p: {} for p in range(here.count) if p != here.process}
    seen = dict.fromkeys(last, time.monotonic())
    while last:
        now = time.monotonic()
        for process, note in watch.notes(last).items():
            if note != last[process]:
                last[process], seen[process] = note, now
            if note.get("left") or note.get("failure") or now - seen[process] > 3 * watch.beat:
                del last[process]
        time.sleep(watch.beat / 20 if last else 0)


def _leaving(last: world.Leaving) -> None:
    if last.error is not None:
        note_failure(last.error)
    stop(linger=last.keeps_store and last.error is None)


def _forked() -> None:
    """The thread is the parent's, and so are the signs of life."""
    global _watch  # noqa: PLW0603 - one watch a process
    if _watch is not None:
        fork.keep(_watch)
    _watch = None


world.on_leave(_leaving)
fork.on_fork(_forked)


def note_failure(text: str) -> None:
    """Tells the others which error ends this process."""
    if _watch is not None:
        _watch.failure = text
        _watch.try_note()


def note_giving_up(call: Call) -> None:
    """Tells the others that this process has lost contact, too."""
    if _watch is not None:
        _watch.gave_up = call
        _watch.try_note()


@final
class Vigil:
    """Looks at the signs of other processes while one waits for them."""

    def __init__(self, processes: Iterable[int]) -> None:
        begin()
        assert _watch is not None
        self._watch = _watch
        self._patience = 3 * self._watch.beat
        self._notes = self._watch.notes(processes)
        self._changed: dict[int, float] = {}
        self._since = time.monotonic()

    def look(self) -> None:
        """Sees who has left another sign."""
        now = time.monotonic()
        for process, note in self._watch.notes(self._notes).items():
            if note != self._notes[process]:
                self._notes[process], self._changed[process] = note, now

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
            time.sleep(self._watch.beat / 5)
        alive = {process for process, when in self._changed.items() if now - when < self._patience}
        return [_sign(process, note, alive=process in alive) for process, note in self._notes.items()]


def _sign(process: int, note: dict[str, object], *, alive: bool) -> Sign:
    failure = note.get("failure")
    return Sign(
        process,
        alive,
        Call.from_json(note.get("call")),
        Call.from_json(note.get("last")),
        note.get("left") is True,
        failure if isinstance(failure, str) else None,
        Call.from_json(note.get("gave_up")),
    )


def cloned(store: c10d.Store) -> c10d.Store:
    """A connection of its own, where the store can have one: one that waits in a thread would block the others."""
    clone = getattr(store, "clone", None)
    if clone is None:
        return store
    try:
        found: c10d.Store = clone()
    except RuntimeError as error:
        where = f"{os.environ.get('MASTER_ADDR', 'an unknown host')}:{os.environ.get('MASTER_PORT', '?')}"
        lost = TimeoutError(
            f"process {world.current().process} cannot reach the store at {where}, through which processes find each other: "
            "its host or the network is down, or the process that keeps it has ended."
        )
        lost.add_note(f"The store says: {str(error).strip().splitlines()[0]}")
        raise lost from None
    return found
