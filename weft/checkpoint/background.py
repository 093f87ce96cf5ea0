"""`Saving`: a save that goes on while the program does."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import CheckpointError
from .pace import Pace
from .progress import Count

__all__ = ["Saving", "finish_running"]

_STEPS_BACK = 10
"""How much nicer than the program its saves are. Nicer still, a thread may be kept waiting with Python's lock in its hands."""

_AHEAD = 0.25
"""Seconds that the program goes ahead: the steps that follow a save have copies to make, and are not to give cores away too."""


class Saving:
    """A save in the background: `done()` says whether it has ended, `wait()` waits, and raises what went wrong.

    Its thread lets those of the program go first, and rests no more when the program has ended. Once somebody waits, another
    thread goes on with it, which takes its share: a thread may step back, but the system lets none of a user's come forward again.

    >>> import torch, weft
    >>> saving = weft.checkpoint.save({"x": torch.ones(4)}, "checkpoint", wait=False)
    >>> saving.wait()
    >>> saving.done(), saving.written, saving.total
    (True, 16, 16)
    """

    def __init__(self, path: Path, work: Iterator[int], count: Count, first: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._work, self._count, self._first = work, count, first
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._awaited = threading.Event()
        self._error: BaseException | None = None
        self._heard = False
        self._process = os.getpid()
        threading.Thread(target=self._run_behind, name=f"weft save {path}").start()

    @property
    def written(self) -> int:
        """How many bytes this process has written."""
        return self._count.done

    @property
    def total(self) -> int:
        """How many bytes this process writes."""
        return self._count.total

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the checkpoint is complete; raises `CheckpointError` if it is not, `TimeoutError` if it takes longer."""
        if not self.done() and not self._awaited.is_set():
            self._awaited.set()
            threading.Thread(target=self._run, name=f"weft save {self.path}, awaited").start()
        if not self._ended.wait(timeout):
            raise TimeoutError(
                f"the save to {str(self.path)!r} has written {self.written} of {self.total} bytes after {timeout} s, and goes on"
            )
        self._heard = True
        if self._error is not None:
            raise CheckpointError(str(self._error)) from self._error

    def __repr__(self) -> str:
        state = f"{self.written} of {self.total} bytes" if not self.done() else "failed" if self._error else "complete"
        return f"<Saving {str(self.path)!r}: {state}>"

    def _run_behind(self) -> None:
        self._first()
        _step_back()
        if self._awaited.wait(_AHEAD):
            return
        with Pace() as pace:
            self._run(lambda: self._awaited.wait(pace.rest() if threading.main_thread().is_alive() else 0))

    def _run(self, stops: Callable[[], bool] = lambda: False) -> None:
        """Does the work, or as much of it as is done before it is to stop, which is asked after each part of it."""
        with self._turn:
            try:
                for nbytes in self._work:
                    self._count(nbytes)
                    if stops():
                        return
            except BaseException as error:  # noqa: BLE001 - raised in `wait`
                self._error = error
            self._ended.set()

    def _finish(self) -> None:
        """Waits for it in the stead of a program that did not, and raises what it has not heard of."""
        heard = self._heard
        try:
            self.wait()
        except CheckpointError as error:
            if not heard:
                raise CheckpointError(f"the save before this one failed: {error}") from error


def _step_back() -> None:
    """Lets all other threads go before this one, and before those that it starts."""
    if sys.platform == "linux":  # elsewhere threads have no niceness of their own
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # where that is forbidden, the program's steps take longer, and all is well
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _STEPS_BACK)


_running: Saving | None = None


def finish_running(following: Saving | None = None) -> None:
    """Waits for the save that goes on, if one does; `following` is the one that goes on from now."""
    global _running
    before, _running = _running, following
    if before is not None and before._process == os.getpid():
        before._finish()


def _warn_at_exit() -> None:
    if (
        _running is not None
        and _running._process == os.getpid()
        and _running._error is not None
        and not _running._heard
    ):
        warnings.warn(f"the save to {str(_running.path)!r} failed: {_running._error}", RuntimeWarning, stacklevel=1)


atexit.register(_warn_at_exit)
