"""`Heartbeat`: signs of life. Every process says now and then that it lives and what it does; whoever waits in vain looks.

The notes are JSON in the launcher's store. A note counts as a sign of life when it changes while one looks, so clocks
of different hosts are never compared.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import final

from torch._C import _distributed_c10d as c10d

from .. import current_call, fork, world
from ..current_call import CollectiveCall
from ..store_client import REPLY, ask, own_connection

__all__ = ["Heartbeat", "begin", "begun", "note_failure", "note_giving_up", "stop"]

BEAT = 1.0
"""Seconds between signs of life, where the timeout leaves room for several."""


@final
class Heartbeat:
    """A thread that leaves signs of life of this process."""

    def __init__(self, here: world.World) -> None:
        self._here = here
        self._store = c10d.PrefixStore("signs", own_connection(world.store()))
        self._ended = threading.Event()
        self._beats = 0
        self._is_cut_off = False
        self._reply = min(REPLY, here.timeout)
        self.beat = min(BEAT, here.timeout.total_seconds() / 5)
        """Seconds between signs of life."""
        self.failure: str | None = None
        self.gave_up: CollectiveCall | None = None
        self.left = False
        self.refusals: Sequence[object] = ()
        """What this process has refused last, as `own_refusals` tells it."""
        self.begun: object = None
        """Which calls this process had begun when it left, as `own_refusals` tells it."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="weft-heartbeat", daemon=True)
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
                "refusals": self.refusals,
                "begun": self.begun,
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
                else ask(lambda: self._read(wanted), self._reply)
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
        self._leave(lambda: ask(self.note, self._reply))

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


_heartbeat: Heartbeat | None = None


def begin() -> Heartbeat | None:
    """Begins to leave signs of life, if that has not begun; none where the others are only said to be there."""
    global _heartbeat  # noqa: PLW0603 - one a process
    if _heartbeat is None and not world.current().is_fake:
        _heartbeat = Heartbeat(world.current())
    return _heartbeat


def begun() -> Heartbeat | None:
    """The signs of life that this process leaves, if it does; who leaves begins with none."""
    return _heartbeat


def stop(*, linger: bool) -> None:
    """Says farewell to the others; who keeps the store for them waits until they have, too."""
    global _heartbeat
    heartbeat, _heartbeat = _heartbeat, None
    if heartbeat is None:
        return
    heartbeat.end()
    if linger:
        _wait_for_farewells(heartbeat)


def _wait_for_farewells(heartbeat: Heartbeat) -> None:
    here = world.current()
    last: dict[int, dict[str, object]] = {p: {} for p in range(here.count) if p != here.process}
    seen = dict.fromkeys(last, time.monotonic())
    while last:
        now = time.monotonic()
        for process, note in heartbeat.notes(last).items():
            if note != last[process]:
                last[process], seen[process] = note, now
            if note.get("left") or note.get("failure") or now - seen[process] > 3 * heartbeat.beat:
                del last[process]
        time.sleep(heartbeat.beat / 20 if last else 0)


def _joined(here: world.World) -> None:
    """From the first: who keeps the store waits at the end for those that live, and others wait for no process that has gone."""
    if here.count > 1:
        begin()


def _leaving(last: world.Leaving) -> None:
    if last.error is not None:
        note_failure(last.error)
    stop(linger=last.keeps_store and last.error is None)


def _forked() -> None:
    """The thread is the parent's, and so are the signs of life."""
    global _heartbeat  # noqa: PLW0603 - one a process
    if _heartbeat is not None:
        fork.keep(_heartbeat)
    _heartbeat = None


world.on_change(_joined)
world.on_leave(_leaving)
fork.on_fork(_forked)


def note_failure(text: str) -> None:
    """Tells the others which error ends this process."""
    if _heartbeat is not None:
        _heartbeat.failure = text
        _heartbeat.try_note()


def note_giving_up(call: CollectiveCall) -> None:
    """Tells the others that this process has lost contact, too."""
    if _heartbeat is not None:
        _heartbeat.gave_up = call
        _heartbeat.try_note()
