"""Waiting for others: in turns short enough to be interrupted, and with an error that says who did not come.

Torch's errors say which connection failed; ours say which process, during what, and what it did instead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, final

from torch._C import _distributed_c10d as c10d

from ...errors import MismatchError, TimeoutError, WeftError  # noqa: A004 - the one of this package
from . import calls, watch, world
from .calls import Call
from .group import Group, Processes
from .watch import Sign, Vigil

__all__ = ["Patience", "finish", "in_time"]

TURN = timedelta(seconds=0.5)
LONG = 30.0
"""Seconds after which a process says that it waits."""
_log = logging.getLogger("weft")
T = TypeVar("T")


def finish(work: c10d.Work, group: Group, device_type: str) -> None:
    """Waits until this process's part of a collective is done."""
    if group.is_streamed(device_type):
        in_time(work.wait, group.processes)
        return
    patience = Patience(group.processes)
    while True:
        try:
            work.wait(TURN)
        except RuntimeError as error:
            # A turn that ends is no failure; the backend itself watches over the timeout.
            if work.is_completed():
                group.abandon()
                raise patience.lost(error) from None
            patience.take_turn()
        except BaseException:
            group.abandon()
            raise
        else:
            return


def in_time(action: Callable[[], T], processes: Processes) -> T:
    """Does something that waits for other processes, and says who did not come."""
    patience = Patience(processes)
    try:
        return action()
    except WeftError:
        raise
    except RuntimeError as error:
        raise patience.lost(error) from None


@final
class Patience:
    """How long this process has waited for others, and what they did in the meantime."""

    def __init__(self, processes: Processes) -> None:
        self._here = world.current()
        self._others = [process for process in processes if process != self._here.process]
        self._start = time.monotonic()
        self._vigil: Vigil | None = None
        self._warned = False

    @property
    def seconds(self) -> float:
        """How long it has been."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """Whether it has been longer than the timeout."""
        return self.seconds >= self._here.timeout.total_seconds()

    def take_turn(self) -> None:
        """Looks after the others while waiting, and says once that it takes long."""
        if self._vigil is None:
            self._vigil = Vigil(self._others)
        self._vigil.look()
        if self.seconds > LONG and not self._warned:
            self._warned = True
            lines = self._lines(self._vigil.signs())[0]
            _log.warning("%s", "\n".join(lines))

    def lost(self, cause: Exception | None = None) -> WeftError:
        """The error for a call in which others did not take part."""
        seconds = self.seconds
        call = calls.current()
        if call is not None:
            watch.note_giving_up(call)
        lines, is_mismatch = self._lines((self._vigil or Vigil(self._others)).signs(), seconds)
        if is_mismatch:
            lines.append(
                "  Every process has to make the same calls in the same order; WEFT_CHECK=1 checks each of them."
            )
        error = (MismatchError if is_mismatch else TimeoutError)("\n".join(lines))
        if cause is not None:
            error.add_note(f"The backend says: {str(cause).strip()}")
        return error

    def _lines(self, signs: list[Sign], seconds: float | None = None) -> tuple[list[str], bool]:
        """What is to say, and whether processes make different calls."""
        seconds = self.seconds if seconds is None else seconds
        call = calls.current() or Call("a collective", "something")
        limit = self._here.timeout.total_seconds()
        blamed = [sign for sign in signs if sign.is_to_blame]
        elsewhere = [sign for sign in signs if sign.is_elsewhere(call)]
        absent = [sign for sign in signs if sign.call is None and sign.gave_up is None]
        how = "lost contact with other processes"
        if seconds > limit / 2 or seconds > LONG:
            how = f"has waited {seconds:.1f} s for other processes"
        lines = [f"process {self._here.process} {how} in {call}."]
        lines += [f"  {sign}" for sign in blamed or elsewhere or absent or signs]
        if blamed:
            lines.append("  Look at what that process printed.")
        elif not elsewhere:
            lines.append(f"  If it is only slow, wait longer than {limit:g} s: weft.distributed.init(timeout=...).")
        return lines, bool(elsewhere and not blamed)
