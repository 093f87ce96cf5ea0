"""`Lane`: one device's run of a function. It goes on when it is told to, until it asks for communication or ends.

Each lane has a thread, but only one of them runs at a time, in the order of the devices: the threads are there so that
plain code can stop in the middle, not to compute at once. So runs are repeatable and nothing races.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar, cast

import torch

from ..engine.moves.movement import layout_of
from ..sharding.mesh import DeviceMesh
from ..watch.call_site import CallSite, call_site
from .conversion import TensorLike, as_tensor

__all__ = ["Lane", "Request", "current_lane", "meeting"]

Op = TypeVar("Op", bound=Callable[..., torch.Tensor])


@dataclass(frozen=True, slots=True)
class Request:
    """What a lane asks for: a communication op, its tensor, and its other arguments."""

    op: str
    x: torch.Tensor
    args: tuple[object, ...]
    kwargs: dict[str, object]
    with_grad: bool
    call_site: CallSite


class _LaneEnded(BaseException):
    """Unwinds a lane that no one will go on with, past any handler for errors."""


class Lane:
    """One device's run of a function."""

    def __init__(self, mesh: DeviceMesh, slot: int, axes: Sequence[str]) -> None:
        self.mesh, self.slot, self.axes = mesh, slot, tuple(axes)
        self.request: Request | None = None
        self._answer: torch.Tensor | None = None
        self._ended = False
        self._resume, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._future: Future[object] | None = None

    def start(self, executor: Executor, body: Callable[[], object]) -> None:
        """Makes the lane ready to run a function under the caller's torch modes."""
        run = functools.partial(self._run, body, _modes())
        self._future = executor.submit(contextvars.copy_context().run, run)

    def go_on(self, answer: torch.Tensor | None = None) -> None:
        """Runs the lane until it asks for something or ends; an error in it is raised here."""
        self._answer, self.request = answer, None
        self._resume.release()
        self._paused.acquire()
        if self.request is None:
            try:
                self.result()
            except Exception as error:
                error.add_note(f"raised on {self} of a local_map")
                raise

    def end(self) -> None:
        """Unwinds a lane that waits, because another one failed."""
        self._ended = True
        if self._future is not None:
            self._resume.release()

    def result(self) -> object:
        """What the function returned."""
        assert self._future is not None
        return self._future.result()

    def ask(self, op: str, x: torch.Tensor, args: tuple[object, ...], kwargs: dict[str, object]) -> torch.Tensor:
        """Called in the lane: stops until the answer is there."""
        self.request = Request(op, x, args, kwargs, torch.is_grad_enabled(), call_site())
        self._wait()
        assert self._answer is not None
        return self._answer

    def _wait(self) -> None:
        self._paused.release()
        self._resume.acquire()
        if self._ended:
            raise _LaneEnded

    def _run(self, body: Callable[[], object], modes: Callable[[], ExitStack]) -> object:
        self._resume.acquire()
        try:
            if self._ended:
                return None
            _here.lane = self
            with modes():
                return body()
        except _LaneEnded:
            return None
        finally:
            _here.lane = None
            self._paused.release()

    def __str__(self) -> str:
        coords = self.mesh.coords(self.slot)
        at = ", ".join(f"{axis}={i}" for axis, i in zip(self.mesh.axis_names, coords, strict=True))
        return f"device {self.slot} ({at})"


class _OfThread(threading.local):
    lane: Lane | None = None  # found in a tenth of the time that it takes to find that there is none


_here = _OfThread()


def current_lane() -> Lane | None:
    """The lane that this code runs in, if it runs in one."""
    return _here.lane


def meeting(op: Op) -> Op:
    """Lets a communication op also be called inside `local_map`, where plain tensors are what one device holds."""

    @functools.wraps(op)
    def call(sharded_tensor: TensorLike, *args: object, **kwargs: object) -> torch.Tensor:
        lane = current_lane()
        if lane is None:
            return op(sharded_tensor, *args, **kwargs)
        x = as_tensor(sharded_tensor, op.__name__)
        if layout_of(x) is not None:
            return op(x, *args, **kwargs)
        if kwargs.pop("async_op", False):
            raise TypeError(
                f"{op.__name__} inside local_map takes no async_op=True: what it gives there is a plain tensor, which cannot "
                "be on its way. Communicate outside of local_map, or leave async_op out"
            )
        return lane.ask(op.__name__, x, args, kwargs)

    return cast(Op, call)


def _modes() -> Callable[[], ExitStack]:
    """The torch modes of this thread, to be entered in another: torch keeps them per thread."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}

    def entered() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(inference))
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in casts.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        return stack

    return entered


@contextmanager
def ended_on_error(lanes: Sequence[Lane]) -> Iterator[None]:
    """Unwinds all lanes when one of them, or their communication, fails."""
    finished = False
    try:
        yield
        finished = True
    finally:
        if not finished:
            for lane in lanes:
                lane.end()
