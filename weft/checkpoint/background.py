"""`Saving`: a save that goes on while the program does."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from .errors import CheckpointError
from .progress import Count

__all__ = ["Saving", "finish_running"]

_STEPS_BACK = 10
"""How much nicer than the program its saves are: where all processors are busy, they get about a tenth of one."""


class Saving:
    """A save in the background: `done()` says whether it has ended, `wait()` waits, and raises what went wrong.

    >>> import torch, weft
    >>> saving = weft.checkpoint.save({"x": torch.ones(4)}, "checkpoint", wait=False)
    >>> saving.wait()
    >>> saving.done(), saving.written, saving.total
    (True, 16, 16)
    """

    def __init__(self, path: Path, act: Callable[[Count], None], count: Count) -> None:
        self.path = path
        self._act, self._count = act, count
        self._error: BaseException | None = None
        self._heard = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=f"weft save {path}")
        self._thread.start()

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
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the checkpoint is complete; raises `CheckpointError` if it is not, `TimeoutError` if it takes longer."""
        self._thread.join(timeout)
        if not self.done():
            raise TimeoutError(
                f"the save to {str(self.path)!r} has written {self.written} of {self.total} bytes after {timeout} s, and goes on"
            )
        self._heard = True
        if self._error is not None:
            raise CheckpointError(str(self._error)) from self._error

    def __repr__(self) -> str:
        state = f"{self.written} of {self.total} bytes" if not self.done() else "failed" if self._error else "complete"
        return f"<Saving {str(self.path)!r}: {state}>"

    def _run(self) -> None:
        try:
            _step_back()
            self._act(self._count)
        except BaseException as error:  # noqa: BLE001 - raised in `wait`
            self._error = error

    def _finish(self) -> None:
        """Waits for it in the stead of a program that did not, and raises what it has not heard of."""
        heard = self._heard
        try:
            self.wait()
        except CheckpointError as error:
            if not heard:
                raise CheckpointError(f"the save to {str(self.path)!r} before this one failed: {error}") from error


def _step_back() -> None:
    """Lets the threads of the program go first; the threads that this one starts are as nice."""
    if sys.platform == "linux":  # elsewhere threads have no niceness of their own
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # a system that forbids it only takes longer for the program's steps
            os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _STEPS_BACK))


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
