"""Communication that goes on while this process computes: asked for now, awaited when what arrives is used.

On host memory, a thread carries out what was asked for, one after another in the order of the calls; whoever
communicates at once waits for it first, so every process makes the same calls in the same order. On accelerators, a
stream of its own does the same for the device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol, final

import torch

from ....caches import cached
from ...holding import Pieces
from .. import current_call, fork, world
from ..liveness.waiting import TURN

__all__ = ["Arriving", "issue", "settle"]

_log = logging.getLogger("weft")


class Arriving(Protocol):
    """Pieces that are on their way."""

    def done(self) -> bool:
        """Whether they are there, or will never be."""

    def wait(self) -> Pieces:
        """The pieces, once they are there; raises what went wrong."""


def issue(action: Callable[[], Pieces], sources: Sequence[torch.Tensor], wire: torch.device) -> Arriving:
    """Begins to communicate; `sources` are what it reads, and stay as they are until it has."""
    return _Streamed(action, sources, wire) if wire.type == "cuda" else _issuer.issue(action)


def settle() -> None:
    """Waits until nothing that was asked for is under way, and raises what went wrong with it, unless the program has heard of that.

    Whether it had ended by now makes no difference: it may have in one process, and not in another, and these are to go on alike.
    """
    if threading.current_thread() is _issuer.thread:
        return
    last = _issuer.under_way[-1:]  # the thread may take it out at any moment
    if last:
        last[0].wait()
    failure = _issuer.failure
    if failure is not None and failure.heard_at is None:
        raise failure.heard(_issuer.count)


@final
class _Failure:
    """What went wrong with a call, and with those that were made before the program had heard of it."""

    __slots__ = ("_error", "heard_at")

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self.heard_at: int | None = None
        """How many calls had been made when the program heard of it."""

    def heard(self, count: int) -> BaseException:
        """What is raised where the program hears of it."""
        if self.heard_at is None:
            self.heard_at = count
        return self._error

    def concerns(self, number: int) -> bool:
        """Whether a call was made before the program had heard of it: then it cannot be met by the others either."""
        return self.heard_at is None or number <= self.heard_at


@final
class _Task:
    """What the thread does for one call."""

    def __init__(self, action: Callable[[], Pieces]) -> None:
        self._action: Callable[[], Pieces] | None = action
        self._site = str(current_call.site())
        self._is_inference = torch.is_inference_mode_enabled()
        self._pieces: Pieces = ()
        self.number = 0
        """Which call it is."""
        self.failure: _Failure | None = None
        self._ended = threading.Event()

    def run(self, earlier: _Failure | None) -> None:
        """Does it, unless something before it failed of which nobody knew when it was asked for."""
        action, self._action = self._action, None
        assert action is not None
        if earlier is not None and earlier.concerns(self.number):
            self.failure = earlier
            return
        try:
            with current_call.at(self._site), torch.inference_mode(self._is_inference), torch.no_grad():
                self._pieces = action()
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is used
            self.failure = _Failure(error)
        del action  # and what it holds

    def end(self) -> None:
        """Lets those that wait go on."""
        self._ended.set()

    def abandon(self) -> None:
        """Says in a child, which has no thread that would go on, that it will never be done."""
        self._action, self._ended = None, threading.Event()
        self._ended.set()
        self.failure = _Failure(
            RuntimeError(
                f"what was asked for at {self._site} had not arrived when this process was forked, and never will: wait for it first"
            )
        )

    def done(self) -> bool:
        """Whether it has been done, or failed."""
        return self._ended.is_set()

    def wait(self) -> Pieces:
        """Waits in turns that a signal can interrupt."""
        while not self._ended.wait(TURN.total_seconds()):
            pass
        if self.failure is not None:
            raise self.failure.heard(_issuer.count)
        return self._pieces


@final
class _Issuer:
    """The thread that carries out what was asked for."""

    def __init__(self) -> None:
        self.under_way: list[_Task] = []
        self.count = 0
        """How many calls have been made."""
        self.failure: _Failure | None = None
        """What went wrong with the last of those that have ended."""
        self.thread: threading.Thread | None = None
        self._tasks: SimpleQueue[_Task] = SimpleQueue()
        self._lock = threading.Lock()

    def issue(self, action: Callable[[], Pieces]) -> _Task:
        """Adds to what is to be done."""
        task = _Task(action)
        with self._lock:  # what is last under way is last to be done, whichever threads ask
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="weft-issue", daemon=True)
                self.thread.start()
            self.count += 1
            task.number = self.count
            self.under_way.append(task)
            self._tasks.put(task)
        return task

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            task.run(self.failure)
            self.failure = task.failure
            self.under_way.remove(task)
            task.end()
            del task


_issuer = _Issuer()


def _forked() -> None:
    global _issuer  # noqa: PLW0603 - its thread is the parent's
    for task in _issuer.under_way:
        task.abandon()
    _issuer = _Issuer()


fork.on_fork(_forked)


def _leaving(last: world.Leaving) -> None:
    """What was asked for and never used is still carried out: the others count on it."""
    try:
        if not last.failed:
            settle()
    except Exception as error:  # noqa: BLE001 - nobody will use it any more
        _log.warning("what was asked for with async_op=True and never used has failed: %s", error)
    finally:
        _issuer.failure = None  # which is no concern of processes that join later


world.on_leave(_leaving)


@cached(64)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@final
class _Streamed:
    """What a stream of its own does for one call; this process has gone on already."""

    def __init__(self, action: Callable[[], Pieces], sources: Sequence[torch.Tensor], wire: torch.device) -> None:
        # The side stream begins after all that was asked for before, so what it frees is no longer in use elsewhere.
        self._wire, side = wire, _side_stream(wire)
        side.wait_stream(torch.cuda.current_stream(wire))
        with torch.cuda.stream(side):
            self._pieces = action()
        self._event = side.record_event()
        # The allocator gives what was read to nobody else before the side stream has read it.
        for source in sources:
            if source.is_cuda:
                source.record_stream(side)

    def done(self) -> bool:
        """Whether the device has come to the end of it."""
        return bool(self._event.query())

    def wait(self) -> Pieces:
        """Lets the current stream wait, also where what was done gives no pieces, but fills some that there are."""
        for device in {self._wire, *(piece.device for piece in self._pieces if piece.is_cuda)}:
            torch.cuda.current_stream(device).wait_event(self._event)
        return self._pieces
