"""`save`: the processes share the shards among them and write each once; the index, written last, makes them a checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from itertools import count as count_up
from pathlib import Path
from typing import Literal, overload

import torch

from ..caches import cached
from ..runtime.memory.headroom import populate
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from .background import Saving, finish_running
from .errors import CheckpointError
from .exchange import NOTES, CommitRounds, FolderNotes, Report, Together, agreed, taken
from .files.index import INDEX, Index, SavedFile, SavedShard
from .files.lock import FolderLock
from .files.writing import WrittenFile, replace, sync_folder, write_file
from .foreign.whole_files import check_fits_file, save_file
from .progress import Count, shown
from .saving_plan import SavePlan, copied_plan, planned_save
from .shares import check_has_values, check_storable, settled
from .tree import Node, State, entries, flattened

__all__ = ["save", "saved"]

_DATA_FILE = re.compile(r"tensors-[0-9a-f]{8}-([0-9]{5})-[0-9]{5}\.safetensors")


@overload
def save(state: State, path: str | os.PathLike[str], *, wait: Literal[True] = True, progress: bool = False) -> None: ...
@overload
def save(state: State, path: str | os.PathLike[str], *, wait: bool, progress: bool = False) -> Saving | None: ...
def save(state: State, path: str | os.PathLike[str], *, wait: bool = True, progress: bool = False) -> Saving | None:
    """Saves a module, an optimizer, a state dict, or dicts, lists and tuples of these, numbers and strings.

    `path` is a directory; a checkpoint that is there already is replaced at once, when the new one is complete. A path
    that ends in `.safetensors` is one plain file of whole tensors instead. Every process calls this.

    With `wait=False` it returns when the state may be changed again, and writes in the background: the handle that it
    gives says when that has ended, and raises what went wrong. The next save waits for it. `progress=True` shows a bar.

    >>> import torch, weft
    >>> model = torch.nn.Linear(4, 4)
    >>> weft.checkpoint.save({"model": model, "epoch": 2}, "checkpoint")
    >>> weft.checkpoint.load("checkpoint")["epoch"]
    2
    >>> saving = weft.checkpoint.save({"model": model, "epoch": 3}, "checkpoint", wait=False)
    >>> saving.wait()
    """
    return saved(lambda: (state, Path(path)), wait=wait, progress=progress)


def saved(
    ask: Callable[[], tuple[State, Path]],
    *,
    wait: bool = True,
    progress: bool = False,
    then: Callable[[], None] = lambda: None,
) -> Saving | None:
    """What `save` does with what is asked for; the first process does `then` when the checkpoint is complete."""
    asked, unfit = taken(lambda: _taken_state(ask, wait), _StateToSave(_NOWHERE, {"dict": []}, {}))
    where, tensors, token = asked.where, asked.tensors, _new_token()
    one_file = wait and _is_one_file(where)
    if wait:
        agreed(where, "a file" if one_file else "a folder", unfit, tensors if one_file else None, token)
    ready = {name: settled(x) for name, x in tensors.items()}
    if one_file:
        save_file(tensors, ready, where, token)
        return None
    lock, refusal = _locked(where)
    refusal = unfit or refusal
    if refusal is not None and world.current().count == 1:
        raise refusal
    try:
        plan = planned_save(asked.structure, ready, tensors, token)
        if not wait:
            plan, uncopied = taken(lambda: copied_plan(plan), plan)
            refusal = refusal or uncopied
        exchange = Together() if wait else FolderNotes(where, token)
        task = _Save(where, token, plan, lock, refusal, exchange, then)
        work = _shown(task.steps(), plan.nbytes, progress)
        if wait:
            for _ in work:
                pass
            return None
    except BaseException:
        if lock is not None:
            lock.release()  # also where the steps, which do it, have not begun
        raise
    saving = Saving(where, work, Count(plan.nbytes), partial(populate, plan.room))
    finish_running(saving)
    if asked.before is not None:
        raise asked.before
    return saving


@dataclass(frozen=True, slots=True)
class _StateToSave:
    """What is to be saved, and where."""

    where: Path
    structure: Node
    tensors: Mapping[str, torch.Tensor]
    before: CheckpointError | None = None
    """What the save before it failed with, and nobody has heard of."""


def _taken_state(ask: Callable[[], tuple[State, Path]], wait: bool) -> _StateToSave:
    """What is asked for, if it can be saved; the save before it has ended then."""
    state, where = ask()
    structure, tensors = flattened(state)
    check_storable(tensors, plain=_is_one_file(where))
    check_has_values(tensors)
    if _is_one_file(where):
        check_fits_file(state, structure, tensors, where, wait)
    before = _failed_before(wait)
    where = where if wait else where.absolute()  # the program may go to another folder
    return _StateToSave(where, structure, tensors, before)


def _failed_before(wait: bool) -> CheckpointError | None:
    """Waits for the save before this one, and raises what it failed with, or gives it, to be raised when this one goes on.

    Processes that save in the background cannot tell each other to stop but by failing this save too, and so each after it.
    """
    try:
        finish_running()
    except CheckpointError as error:
        if wait or world.current().count == 1:
            raise
        return error
    return None


_NOWHERE = Path(os.devnull) / "nowhere"
"""Where a process saves that was asked for nothing that can be saved: it cannot, and the others hear of it."""


def _is_one_file(where: Path) -> bool:
    return where.suffix == ".safetensors"


def _shown(steps: Iterator[int], total: int, progress: bool) -> Iterator[int]:
    """The steps of a save, with a bar if one is wanted."""
    with shown("saving", total, progress) as count:
        for nbytes in steps:
            count(nbytes)
            yield nbytes


def _new_token() -> str:
    """A word that no earlier save has used. Processes agree on their first, and count from there."""
    here = world.current()
    if here.count == 1:
        return uuid.uuid4().hex[:8]
    return f"{(_first_token(here.number) + next(_saves)) % (1 << 32):08x}"


_saves = count_up()


@cached(64)
def _first_token(_: int) -> int:
    return int(gathered(uuid.uuid4().hex[:8], "save")[0], 16)


def _locked(where: Path) -> tuple[FolderLock | None, CheckpointError | None]:
    """The first process's lock on the folder, or why it cannot have it; the other processes will hear."""
    try:
        if os.path.lexists(where) and not where.is_dir():
            raise CheckpointError(
                f"{str(where)!r} is a file or leads nowhere: a checkpoint is a directory, or a path that ends in '.safetensors'"
            )
        where.mkdir(parents=True, exist_ok=True)
        return (FolderLock(where) if world.current().process == 0 else None), None
    except CheckpointError as error:
        return None, error
    except (OSError, ValueError) as error:  # ValueError: what no path has, such as a byte of 0
        refusal = CheckpointError(f"cannot save to {str(where)!r}: {error}")
        refusal.__cause__ = error
        return None, refusal


class _Save:
    """What a save does once it is known what is written where."""

    def __init__(
        self,
        where: Path,
        token: str,
        plan: SavePlan,
        lock: FolderLock | None,
        refusal: CheckpointError | None,
        exchange: CommitRounds,
        then: Callable[[], None],
    ) -> None:
        self.where, self.token, self.plan, self.lock, self.exchange = where, token, plan, lock, exchange
        self.then, self.refusal = then, refusal
        self._here = world.current()  # which the program may leave before the save has ended
        self.leftovers: list[Path] = []

    def steps(self) -> Iterator[int]:
        """Writes, tells the others, and makes it a checkpoint; raises in all processes what went wrong in one.

        Whoever goes through it does the work; it yields how many bytes were written, part by part.
        """
        try:
            self.exchange.begin()
            problem: Exception | None = self.refusal
            report: Report = None if problem is None else [str(problem)]
            try:
                if problem is None:
                    self.leftovers = list(_leftovers(self.where, self.token, self._here))
                    written = yield from self._write()
                    files = {
                        name: (each.file.nbytes, each.file.head, each.file.checksum, dict(each.shards))
                        for name, each in written.items()
                    }
                    report = {"files": files, "entries": list(entries(self.plan.structure))}
            except Exception as error:  # noqa: BLE001 - raised in all processes
                problem, report = error, str(error)
            outcome = self.exchange.outcome(self._published(self.exchange.reports(report)))
            if outcome is not None:
                raise CheckpointError(outcome) from problem
            _remove(self.leftovers)
            if self.lock is not None:
                self.then()
        except BaseException:
            self._take_back()
            raise
        finally:
            if self.lock is not None:
                self.lock.release()

    def _take_back(self) -> None:
        """Removes the files of this process, unless they are a checkpoint already."""
        if self.refusal is not None:  # it has written none, and may have no folder that can be asked for
            return
        try:
            files = Index.read(self.where / INDEX).files
        except CheckpointError:
            files = {}
        _remove(self.where / name for name in self.plan.own if name not in files)

    def _write(self) -> Generator[int, None, dict[str, WrittenFile]]:
        for event in self.plan.on_their_way:
            event.synchronize()
        written: dict[str, WrittenFile] = {}
        for name, content in self.plan.own.items():
            written[name] = yield from write_file(self.where / name, content)
        if written:
            sync_folder(self.where)
        return written

    def _published(self, reports: list[Report]) -> str | None:
        """Writes the index, in the first process; what stops it."""
        if self._here.process != 0:
            return None
        for process, report in enumerate(reports):
            if isinstance(report, list):
                return str(report[0])
            if isinstance(report, str):
                return f"cannot save to {str(self.where)!r}, process {process} could not write its files: {report}. The old checkpoint stays"
        try:
            index = self._index(reports)
            for name, file in index.files.items():
                if not (self.where / name).is_file() or (self.where / name).stat().st_size != file.nbytes:
                    return f"cannot save to {str(self.where)!r}, process 0 does not see the file {name!r} that another has written: the processes need one folder that all of them see"
            replace(self.where / INDEX, index.to_bytes(), self.token)
        except Exception as error:  # noqa: BLE001 - raised in all processes: states that differ, or a number that no text can hold
            return f"cannot save to {str(self.where)!r}: {error}. The old checkpoint stays"
        return None

    def _index(self, reports: list[Report]) -> Index:
        files: dict[str, SavedFile] = {}
        places: dict[tuple[str, str], tuple[int, str]] = {}
        everywhere = [report for report in reports if isinstance(report, dict)]
        for report in everywhere:
            for name, (size, head, checksum, shards) in report["files"].items():
                files[name] = SavedFile(size, head, checksum)
                places |= {(name, key): place for key, place in shards.items()}
        planned = {(shard.file, shard.key) for x in self.plan.tensors.values() for shard in x.shards}
        if planned != places.keys():
            _, key = min(planned ^ places.keys())
            raise ValueError(f"the processes save different states, {key!r} is not in all of them")
        own = set(everywhere[0]["entries"])
        for process, report in enumerate(everywhere):
            for name in report["entries"]:
                if name not in own:
                    raise ValueError(
                        f"the processes save different states, {name!r} of process {process} is not in that of process 0, and would be lost"
                    )

        def filled(shard: SavedShard) -> SavedShard:
            start, sums = places[shard.file, shard.key]
            return changed(shard, start=start, checksums=sums)

        return Index(
            self.plan.structure,
            {name: changed(x, shards=tuple(map(filled, x.shards))) for name, x in self.plan.tensors.items()},
            files,
        )


def _leftovers(where: Path, token: str, here: world.World) -> Iterator[Path]:
    """What the checkpoint that stands there has, or saves that did not finish have left: this process's part of it.

    Others may have begun with this save already, and have left notes.
    """
    for path in where.iterdir():
        if token in path.name:
            continue
        data = _DATA_FILE.fullmatch(path.name)
        writer = min(int(data[1]), here.count) % here.count if data else 0
        if writer == here.process and (data or path.name.startswith((f".{INDEX}.", NOTES))):
            yield path


def _remove(leftovers: Iterable[Path]) -> None:
    """Removes what is no checkpoint; what cannot be removed says nothing of the save, and the next one tries again."""
    for path in leftovers:
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
