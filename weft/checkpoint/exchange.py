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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypedDict, TypeVar

import torch

from ..runtime.processes import world
from ..runtime.processes.agreement.notices import noticed, write_notice
from ..runtime.processes.agreement.values import gathered
from ..runtime.processes.liveness.waiting import looking
from .errors import CheckpointError
from .files.checksums import checksum

__all__ = ["NOTES", "CommitRounds", "FolderNotes", "Report", "Together", "WrittenReport", "agreed", "of_all", "taken"]

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
_BEHIND = "in the background"
"""Who makes a save in the background, as processes tell each other."""
_GRACE = 30.0
"""Seconds that others are waited for when the program itself has ended."""
_SEEN = 120.0
"""Seconds after which all that have a folder see a note there: what network file systems remember of folders is old by then."""


def of_all(act: Callable[[], T], doing: str) -> list[T]:
    """What an act gives in each process, in words that JSON has; raises in all processes what goes wrong in one.

    >>> of_all(lambda: 3, "count")
    [3]
    """
    problem: Exception | None = None
    mine: list[T] = []
    try:
        mine.append(act())
    except Exception as error:  # noqa: BLE001 - raised in all processes
        problem = error
    every = gathered((mine, problem and str(problem)), doing)
    if problem is not None:
        raise problem
    for process, (_, text) in enumerate(every):
        if text is not None:
            raise CheckpointError(f"process {process} could not {doing}: {text}")
    return [found for given, _ in every for found in given]


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


def agreed(
    folder: Path,
    form: str,
    unfit: CheckpointError | None,
    listed: Mapping[str, torch.Tensor] | None = None,
    token: str = "",
) -> str:
    """A word for a save that all begin together; raises in all if one cannot, or does not write the same `form`.

    Where one file or list says what all write, `listed` is what it says of: tensors of these names, dtypes and shapes. A save
    that has a `token` already may be one in the background elsewhere, whose process does not come here: that is looked for.
    """
    kinds = [(name, str(x.dtype), tuple(x.shape)) for name, x in (listed or {}).items()]
    mine = uuid.uuid4().hex[:8], form, checksum(repr(kinds).encode()), unfit and str(unfit)
    with looking(lambda: _check_all_wait(folder, token)):
        every = gathered(mine, "save")
    for *_, text in every:
        if text is not None:
            raise unfit or CheckpointError(text)
    for process, (_, other, tensors, _) in enumerate(every):
        if other != every[0][1]:
            raise CheckpointError(
                f"cannot save to {str(folder)!r}: process {process} writes {other}, but process 0 {every[0][1]}: give all processes the same path and options"
            )
        if tensors != every[0][2]:
            raise CheckpointError(
                f"cannot save to {str(folder)!r}: process {process} has tensors of other names, shapes or dtypes than process 0, "
                "and all write to one list of them: give all processes the same state"
            )
    return str(every[0][0])


def _check_all_wait(folder: Path, token: str) -> None:
    """Raises, and tells those that are about to wait for this process, if another makes this save in the background."""
    for process in noticed(_name(token, _BEHIND)):
        mine = world.current().process
        text = (
            f"cannot save to {str(folder)!r}: process {mine} saves with wait=True, but process {process} with wait=False: "
            "give all processes the same options"
        )
        with suppress(RuntimeError, ValueError):
            write_notice(_name(token, str(mine)), [text])
            if mine == 0:
                write_notice(_name(token, "outcome"), text)
        raise CheckpointError(text)


def _name(token: str, what: str) -> str:
    """What a notice of a save is called where processes find each other."""
    return f"save {token} {what}"


class CommitRounds(Protocol):
    """Two rounds: all say what they have written, then the first says how it ended."""

    def begin(self) -> None:
        """Says how this process saves."""

    def reports(self, mine: Report) -> list[Report]:
        """What each process has written, in order; all of them in the first process at least."""

    def outcome(self, mine: str | None) -> str | None:
        """What went wrong in the end, if anything; the first process says it."""


class Together:
    """The processes wait for each other."""

    def begin(self) -> None:
        """They have agreed already."""

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
    Whether all have one folder is seen by the first process's note, of which it says elsewhere that it is there.
    """

    def __init__(self, path: Path, token: str) -> None:
        self._here = here = world.current()
        self._folder = path / f"{NOTES}{token}"
        self._token, self._process, self._count = token, here.process, here.count
        self._timeout = here.timeout.total_seconds()
        self._outside: str | None = None
        """Why this process cannot take part: what it has against the save, or against the folder."""

    def begin(self) -> None:
        """Says that this process does not come where those meet that wait: one that does hears of it there."""
        if self._count > 1:
            self._tell(_BEHIND, self._process)

    def reports(self, mine: Report) -> list[Report]:
        """What each process has written, in the first; the others leave theirs."""
        if self._count == 1:
            return [mine]
        self._leave(str(self._process), mine)
        if self._outside is not None:
            return [[self._outside]]
        if self._process != 0:
            return [mine]
        self._tell("there", True)
        return [self._found(str(process)) for process in range(self._count)]

    def outcome(self, mine: str | None) -> str | None:
        """What the first process says; the last that has read it removes the notes."""
        if self._count == 1:
            return mine
        if self._outside is not None and self._process != 0:
            return self._outside
        if self._process == 0:
            self._leave("outcome", mine)
        else:
            mine = self._outcome()
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
            self._tell(name, content)

    def _tell(self, name: str, content: object) -> None:
        """Says something where processes find each other; one that has left the others meanwhile says it in the folder only."""
        if world.joined() is self._here:
            with suppress(RuntimeError, ValueError):
                write_notice(_name(self._token, name), content)

    def _told(self, name: str) -> list[object]:
        return noticed(_name(self._token, name)) if world.joined() is self._here else []

    def _found(self, name: str) -> Report:
        started, pause = time.monotonic(), 0.002
        ended_at: float | None = None
        unseen_at: float | None = None
        while not (self._folder / name).exists():
            told = self._told(name)
            if told:
                return told[0]  # type: ignore[return-value] # as one of the processes has written it
            if not self._folder.exists():  # with the note of this process in it
                raise CheckpointError(
                    f"cannot save to {str(self._folder.parent)!r}: what was written there was removed before all processes had finished. "
                    "Let each wait for the save before one of them removes it"
                )
            now = time.monotonic()
            if ended_at is None and not threading.main_thread().is_alive():
                ended_at = now
            if unseen_at is None and self._told("there") and not (self._folder / "0").exists():
                unseen_at = now
            if unseen_at is not None and now - unseen_at > _SEEN:
                self._go_elsewhere()
            if now - started > self._timeout or (ended_at is not None and now - ended_at > _GRACE):
                who = "process 0" if name == "outcome" else f"process {name}"
                raise CheckpointError(
                    f"cannot save to {str(self._folder.parent)!r}: {who} has not finished its part within {now - started:.0f} s, it has ended, "
                    "or saves with another path or other options. The old checkpoint stays"
                )
            time.sleep(pause)
            pause = min(0.1, pause * 1.5)
        content: Report = json.loads((self._folder / name).read_bytes())
        return content

    def _go_elsewhere(self) -> None:
        """Raises in all processes, if the note of the first is not to be seen even now."""
        if (self._folder / "0").exists():
            return
        said = (
            f"cannot save to {str(self._folder.parent)!r}: process {self._process} does not see there what process 0 has written: "
            "the processes need one folder that all of them see"
        )
        self._tell(str(self._process), [said])
        shutil.rmtree(self._folder, ignore_errors=True)
        raise CheckpointError(said)
