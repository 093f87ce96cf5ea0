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
    """Waits until nothing that was asked for is under way, and raises what went wrong with it."""
    last = _issuer.under_way[-1:]  # the thread may take it out at any moment
    if last and threading.current_thread() is not _issuer.thread:
        last[0].wait()


@final
class _Task:
    """What the thread does for one call."""

    def __init__(self, action: Callable[[], Pieces]) -> None:
        self._action: Callable[[], Pieces] | None = action
        self._site = str(current_call.site())
        self._is_inference = torch.is_inference_mode_enabled()
        self._pieces: Pieces = ()
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self, earlier: BaseException | None) -> None:
        """Does it, unless something before it failed: then this cannot be met by the others either."""
        action, self._action = self._action, None
        assert action is not None
        self.error = earlier
        if earlier is None:
            try:
                with current_call.at(self._site), torch.inference_mode(self._is_inference), torch.no_grad():
                    self._pieces = action()
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is used
                self.error = error
        del action  # and what it holds

    def end(self) -> None:
        """Lets those that wait go on."""
        self._ended.set()

    def abandon(self) -> None:
        """Says in a child, which has no thread that would go on, that it will never be done."""
        self._action, self._ended = None, threading.Event()
        self._ended.set()
        self.error = RuntimeError(
            f"what was asked for at {self._site} had not arrived when this process was forked, and never will: wait for it first"
        )

    def done(self) -> bool:
        """Whether it has been done, or failed."""
        return self._ended.is_set()

    def wait(self) -> Pieces:
        """Waits in turns that a signal can interrupt."""
        while not self._ended.wait(TURN.total_seconds()):
            pass
        if self.error is not None:
            raise self.error
        return self._pieces


@final
class _Issuer:
    """The thread that carries out what was asked for."""

    def __init__(self) -> None:
        self.under_way: list[_Task] = []
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
            self.under_way.append(task)
            self._tasks.put(task)
        return task

    def _run(self) -> None:
        earlier: BaseException | None = None
        while True:
            task = self._tasks.get()
            task.run(earlier)
            earlier = task.error
            self.under_way.remove(task)
            task.end()
            if not self.under_way:
                earlier = None
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
    if last.failed:
        return
    try:
        settle()
    except Exception as error:  # noqa: BLE001 - nobody will use it any more
        _log.warning("what was asked for with async_op=True and never used has failed: %s", error)


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
