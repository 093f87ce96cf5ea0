"""How the processes of a save tell each other what they have written: together, or by notes that nobody waits for.

A save in the foreground uses the program's own communication, which notices when a process is lost. One in the background
must not: the program communicates meanwhile, in an order of its own. Its processes leave notes beside the files.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

from ..runtime.processes import world
from ..runtime.processes.agreement.notices import noticed, write_notice
from ..runtime.processes.agreement.values import gathered
from .errors import CheckpointError

__all__ = ["NOTES", "CommitRounds", "FolderNotes", "Report", "Together", "WrittenReport", "agreed", "taken"]

T = TypeVar("T")


class WrittenReport(TypedDict):
    """What a process has written, and what its state has."""

    files: dict[str, tuple[int, int, str | None, dict[str, tuple[int, str]]]]
    """By name their size, that of their head, their checksum, and where the shards lie in them with which checksums."""
    entries: list[str]
    """The names of all that its state has, but for what is in lists."""


Report = WrittenReport | list[str] | str | None
"""A text is what went wrong, a list of one why it did not begin."""
NOTES = ".saving-"
"""How the names of folders with notes begin."""
_GRACE = 30.0
"""Seconds that others are waited for when the program itself has ended."""


def taken(take: Callable[[], T], nothing: T) -> tuple[T, CheckpointError | None]:
    """What is taken of a state, or nothing and why it cannot be saved: if others can save theirs, they will hear."""
    try:
        return take(), None
    except Exception as error:
        here = world.current()
        if here.count == 1:
            raise
        unfit = CheckpointError(f"process {here.process} cannot save its state: {error}")
        unfit.__cause__ = error
        return nothing, unfit


def agreed(folder: Path, tensors: str, unfit: CheckpointError | None) -> str:
    """A word for a save in which all write what one file or list says; raises in all if one cannot, or has other tensors.

    `tensors` is a checksum of their names, dtypes and shapes.
    """
    every = gathered((uuid.uuid4().hex[:8], tensors, unfit and str(unfit)), "save")
    for _, _, text in every:
        if text is not None:
            raise unfit or CheckpointError(text)
    for process, (_, other, _) in enumerate(every):
        if other != every[0][1]:
            raise CheckpointError(
                f"cannot save to {str(folder)!r}: process {process} has tensors of other names, shapes or dtypes than process 0, "
                "and all write to one list of them: give all processes the same state"
            )
    return str(every[0][0])


class CommitRounds(Protocol):
    """Two rounds: all say what they have written, then the first says how it ended."""

    def reports(self, mine: Report) -> list[Report]:
        """What each process has written, in order; all of them in the first process at least."""

    def outcome(self, mine: str | None) -> str | None:
        """What went wrong in the end, if anything; the first process says it."""


class Together:
    """The processes wait for each other."""

    def reports(self, mine: Report) -> list[Report]:
        """What each process has written."""
        return gathered(mine, "save")

    def outcome(self, mine: str | None) -> str | None:
        """What the first process says."""
        return gathered(mine, "save")[0]


class FolderNotes:
    """The processes leave notes in a folder; each is renamed into place, so that nobody reads half of one.

    A process that cannot write there says so to the others where processes find each other, and then it has nothing to wait for.
    Whoever has read how it ended says so, and the last of them removes the folder: it is there for as long as anybody writes.
    """

    def __init__(self, path: Path, token: str) -> None:
        here = world.current()
        self._folder = path / f"{NOTES}{token}"
        self._token, self._process, self._count = token, here.process, here.count
        self._timeout = here.timeout.total_seconds()
        self._outside: str | None = None
        """Why this process cannot take part: what it has against the save, or against the folder."""

    def reports(self, mine: Report) -> list[Report]:
        """What each process has written, in the first; the others leave theirs."""
        if self._count == 1:
            return [mine]
        self._leave(str(self._process), mine)
        if self._outside is not None:
            return [[self._outside]]
        if self._process != 0:
            return [mine]
        return [self._found(str(process)) for process in range(self._count)]

    def outcome(self, mine: str | None) -> str | None:
        """What the first process says; the last that has read it removes the notes."""
        if self._count == 1:
            return mine
        if self._process == 0:
            self._leave("outcome", mine)
        elif self._outside is None:
            mine = self._outcome()
        if self._outside is not None:
            return mine or self._outside
        self._leave(f"seen-{self._process}", None)
        if all((self._folder / f"seen-{process}").exists() for process in range(self._count)):
            shutil.rmtree(self._folder, ignore_errors=True)
        return mine

    def _outcome(self) -> str | None:
        found = self._found("outcome")
        return None if found is None else str(found)

    def _leave(self, name: str, content: object) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            temporary = self._folder / f".{name}"
            temporary.write_bytes(json.dumps(content).encode())
            temporary.replace(self._folder / name)
        except OSError as error:
            if isinstance(content, dict):
                content = f"its notes cannot be left: {error}"
            self._outside = content[0] if isinstance(content, list) else str(content)
            write_notice(self._notice(name), content)

    def _notice(self, name: str) -> str:
        return f"save {self._token} {name}"

    def _found(self, name: str) -> Report:
        started, pause = time.monotonic(), 0.002
        ended_at: float | None = None
        while not (self._folder / name).exists():
            told = noticed(self._notice(name))
            if told:
                return told[0]  # type: ignore[return-value] # as one of the processes has written it
            now = time.monotonic()
            if ended_at is None and not threading.main_thread().is_alive():
                ended_at = now
            if now - started > self._timeout or (ended_at is not None and now - ended_at > _GRACE):
                who = "process 0" if name == "outcome" else f"process {name}"
                raise CheckpointError(
                    f"{who} has not finished its part of the save within {now - started:.0f} s: the old checkpoint stays"
                )
            time.sleep(pause)
            pause = min(0.1, pause * 1.5)
        content: Report = json.loads((self._folder / name).read_bytes())
        return content
