"""`Keeper`: numbered checkpoints of a training, of which the newest are kept and the last is found again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import final

from ..distributed import on_main
from ..runtime.processes.agreement.values import gathered
from .background import finish_running
from .errors import CheckpointError
from .exchange import of_all
from .files.index import INDEX
from .files.lock import FolderLock
from .files.verifying import verify
from .loading import load
from .random_state import random_states, set_random_state
from .saving import saved
from .tree import State

__all__ = ["Keeper"]

_NAME = re.compile(r"step-([0-9]{8,})")


@final
class Keeper:
    """Saves every so many steps, keeps the newest checkpoints, and resumes from the last complete one.

    Besides the state, a checkpoint holds the step and the state of the random generators. Saves go on in the background,
    unless `wait=True`. Checkpoints that were not completed are passed over, and removed when a later one is complete.

    >>> import torch, weft
    >>> model = torch.nn.Linear(2, 2)
    >>> keeper = weft.checkpoint.Keeper("run", keep=2, every=10)
    >>> start = keeper.resume({"model": model})
    >>> for step in range(start, 45):
    ...     keeper.step(step + 1, {"model": model})
    >>> keeper.wait()
    >>> start, keeper.steps(), keeper.resume({"model": model})
    (0, [30, 40], 40)
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 3, every: int = 1, *, wait: bool = False) -> None:
        for name, value in (("keep", keep), ("every", every)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is a whole number from 1 on, but got {value!r}")
        self.path = Path(path).absolute()  # the program may go to another folder
        self.keep, self.every = keep, every
        self.state: State = None
        """What the checkpoint held that was resumed from, with what was filled in place."""
        self._wait = wait

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, the oldest first."""
        return sorted(step for step, folder in self._folders() if (folder / INDEX).is_file())

    def latest(self) -> Path | None:
        """The newest complete checkpoint, if there is one."""
        steps = self.steps()
        return self.folder(steps[-1]) if steps else None

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies, or would lie."""
        return self.path / f"step-{step:08d}"

    def step(self, step: int, state: State) -> None:
        """Saves after this many steps, if it is time."""
        _check_step(step)
        if step % self.every == 0:
            self.save(step, state)

    def save(self, step: int, state: State) -> None:
        """Saves after this many steps, whether it is time or not."""

        def ask() -> tuple[State, Path]:
            _check_step(step)
            return {"step": step, "state": state, "random": random_states()}, self.folder(step)

        saved(ask, wait=self._wait, then=lambda: self._sweep(step))

    def wait(self) -> None:
        """Waits until the last save is complete; raises `CheckpointError` if it is not."""
        finish_running()

    def resume(self, like: State, *, cast: bool = False) -> int:
        """Loads the newest complete checkpoint into `like` as `weft.checkpoint.load` does; the steps it was saved after.

        0 if there is none. One that turns out to be damaged is passed over, with a warning, for the one before it.
        """
        finish_running()
        steps, *others = of_all(self.steps, "resume")
        for process, found_there in enumerate(others, 1):
            if found_there and not steps:
                raise CheckpointError(
                    f"process {process} finds checkpoints in {str(self.path)!r}, of the steps {found_there}, but process 0 finds none in its folder: "
                    "give all processes the same path, of a folder that all of them see"
                )
        for step in reversed(steps):
            found: State = None

            def attempt(step: int = step) -> str | None:
                nonlocal found
                try:
                    found = load(self.folder(step), {"step": None, "state": like, "random": None}, cast=cast)
                except CheckpointError as error:
                    return str(error)
                return None

            problem = next((text for text in of_all(attempt, "resume") if text is not None), None)
            if problem is not None:
                self._check_is_damaged(step, problem)
                warnings.warn(f"{problem}. Going on with the checkpoint before it", RuntimeWarning, stacklevel=2)
                continue
            assert isinstance(found, dict)  # as what it was loaded into
            set_random_state(found["random"])
            self.state = found["state"]
            return step
        if steps:
            raise CheckpointError(
                f"none of the checkpoints in {str(self.path)!r} can be loaded: {steps} are all damaged"
            )
        return 0

    def _check_is_damaged(self, step: int, problem: str) -> None:
        """Raises an error that says that a sound checkpoint does not fit."""
        sound = False
        if on_main():
            try:
                verify(self.folder(step))
                sound = True
            except CheckpointError:
                sound = False
        if gathered(sound, "resume")[0]:
            raise CheckpointError(problem)

    def _folders(self) -> Iterator[tuple[int, Path]]:
        try:
            found = list(self.path.iterdir()) if self.path.is_dir() else []
        except OSError as error:
            raise CheckpointError(f"cannot look for checkpoints in {str(self.path)!r}: {error}") from error
        for path in found:
            name = _NAME.fullmatch(path.name)
            if name and path.is_dir():
                yield int(name[1]), path

    def _sweep(self, step: int) -> None:
        """Removes what is too old, and what was never completed and nobody writes to."""
        complete = self.steps()
        kept = {*complete[-self.keep :], step}
        for other, folder in list(self._folders()):
            if other in kept or (
                other > step and other not in complete
            ):  # other processes may be ahead, and save there
                continue
            with contextlib.suppress(
                CheckpointError, OSError
            ):  # it is another's: what was saved is complete, and it stays
                if folder.is_symlink():  # what it leads to is not the keeper's
                    folder.unlink()
                    continue
                lock = FolderLock(folder)
                try:
                    (folder / INDEX).unlink(missing_ok=True)  # first, so that nobody takes what is left for complete
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    lock.release()


def _check_step(step: int) -> None:
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"a step is a whole number from 0 on, but got {step!r}")
