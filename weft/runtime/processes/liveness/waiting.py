"""Waiting for others: in turns short enough to be interrupted, and with an error that says who did not come.

Torch's errors say which connection failed; ours say which process, during what, and what it did instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import TypeVar, final

from torch._C import _distributed_c10d as c10d

from ....errors import MismatchError, TimeoutError, WeftError  # noqa: A004 - the one of this package
from ...spans import WAITING, spanned
from .. import current_call, fork, renewal, world
from ..current_call import CollectiveCall
from ..group import Group, Processes
from . import heartbeat, own_refusals
from .signs import Observer, Sign

__all__ = ["TURN", "Patience", "Waiter", "finish", "finish_turns", "given_up", "in_time", "looking", "met", "stream"]

TURN = timedelta(seconds=0.5)
NO_LIMIT = timedelta(0)
LONG = 30.0
"""Seconds after which a process says that it waits."""
AT_ONCE, LAST = timedelta(milliseconds=1), 2.0
"""How long messages are waited for that are given up, and how many seconds threads have at the end of the program."""
_log = logging.getLogger("weft")
T = TypeVar("T")


class _Looks(threading.local):
    look: Callable[[], object] | None = None


_looks = _Looks()


@contextmanager
def looking(look: Callable[[], object]) -> Iterator[None]:
    """Where this thread waits for others meanwhile, it looks once a turn whether they will come; what `look` raises ends the wait."""
    before, _looks.look = _looks.look, look
    try:
        yield
    finally:
        _looks.look = before


@spanned(WAITING, "for others")
def stream(work: c10d.Work, group: Group) -> None:
    """Lets the device wait for an exchange; this process goes on."""
    in_time(work.wait, group.processes)


@spanned(WAITING, "for others")
def finish_turns(work: c10d.Work, group: Group) -> None:
    """Waits for a collective that can be waited for in turns."""
    start = time.monotonic()
    patience: Patience | None = None
    while True:
        # A turn may end just before the work does, so what is completed is asked once more, and says how it ended.
        is_completed = work.is_completed()
        try:
            work.wait(NO_LIMIT if is_completed else TURN)
        except RuntimeError as error:
            patience = patience or Patience(group.processes, start)
            if is_completed:
                group.abandon(work.is_completed)
                raise patience.lost(error) from None
            # A turn that ends is no failure; the backend itself watches over the timeout.
            if not work.is_completed():
                try:
                    patience.take_turn()
                except BaseException:
                    group.abandon(work.is_completed)
                    raise
        except BaseException:
            group.abandon(work.is_completed)
            raise
        else:
            return


@spanned(WAITING, "for others")
def finish(
    works: Sequence[c10d.Work], group: Group, meanwhile: Callable[[], None], waiter: Waiter | None = None
) -> None:
    """Waits for messages, and does something in the meantime; a `waiter` of its own waits for no others."""
    if not works:
        meanwhile()
        return
    start = time.monotonic()
    task = (waiter or _waiter).wait_for(works)
    patience: Patience | None = None
    try:
        meanwhile()
        while not task.done.acquire(timeout=TURN.total_seconds()):
            if patience is None:
                patience = Patience(group.processes, start)
            patience.take_turn()
    except BaseException:
        group.abandon(task.is_over)
        raise
    if task.error is not None:
        group.abandon(task.is_over)
        raise (patience or Patience(group.processes, start)).lost(task.error) from None


def given_up(works: Sequence[c10d.Work], group: Group, cause: RuntimeError) -> Exception:
    """The error for messages of which only some could begin."""
    group.abandon(_waiter.wait_for(works).is_over)
    return Patience(group.processes).lost(cause)


class _AwaitedMessages:
    """Messages to wait for; the lock is free when they have gone and come, or will not."""

    __slots__ = ("done", "error", "works")

    def __init__(self, works: Sequence[c10d.Work]) -> None:
        self.works, self.error = works, None
        self.done = threading.Lock()
        self.done.acquire()

    works: Sequence[c10d.Work]
    error: RuntimeError | None

    def wait(self) -> None:
        """Waits for them, and lets go of them: what is left of a thread at the end of the interpreter lets go of nothing."""
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            self.error = error.with_traceback(None)  # which would hold this
        self.works = ()

    def is_over(self) -> bool:
        """Whether nobody waits for them any more."""
        return not self.works

    def give_up(self) -> None:
        """Lets go of them, whoever waits: what has not come at once breaks the connection."""
        for work in self.works:
            with suppress(RuntimeError):
                work.wait(AT_ONCE)


@final
class Waiter:
    """A thread that waits for messages, because a wait of the backend cannot be interrupted, and its thread can wait."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_AwaitedMessages | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        renewal.forget_on_renewal(self._renew)

    def _renew(self) -> None:
        """Leaves what was waited for to the thread that waits for it: it may never come. Then that thread ends."""
        if self._thread is not None:
            self._tasks.put(None)
        self._tasks, self._thread = SimpleQueue(), None

    def wait_for(self, works: Sequence[c10d.Work]) -> _AwaitedMessages:
        """Says when all of it is done."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(self._tasks,), name="weft-wire", daemon=True)
            self._thread.start()
        task = _AwaitedMessages(works)
        self._tasks.put(task)
        return task

    @staticmethod
    def _run(tasks: SimpleQueue[_AwaitedMessages | None]) -> None:
        while (task := tasks.get()) is not None:
            _in_backends[threading.get_ident()] = task.give_up
            task.wait()
            task.done.release()
            del task, _in_backends[threading.get_ident()]


_in_backends: dict[int, Callable[[], None]] = {}
"""By thread that waits in a backend, which knows of no turns, what lets it go on. Bound: these threads. Cleared: each when it has
come back; in a child that is forked."""
_waiter = Waiter()


def _left(here: world.World) -> None:
    """Lets threads come back that were left to wait for others: one that does while the interpreter ends would abort the process."""
    end = time.monotonic() + LAST
    while here.count == 1 and _in_backends and time.monotonic() < end:
        for let_go in list(_in_backends.values()):
            let_go()
        time.sleep(AT_ONCE.total_seconds())


world.on_change(_left)  # after `Waiter` has heard of it
fork.on_fork(_in_backends.clear)


@spanned(WAITING, "for others")
def in_time(action: Callable[[], T], processes: Processes, patience: Patience | None = None) -> T:
    """Does something that waits for other processes, and says who did not come."""
    patience = patience or Patience(processes)
    try:
        return action()
    except WeftError:
        raise
    except RuntimeError as error:
        raise patience.lost(error) from None


def met(action: Callable[[], T], processes: Processes) -> T:
    """Does something for which processes meet, and which cannot be interrupted: a thread does it, and this one looks after the others."""
    meeting: Future[T] = Future()

    def meet() -> None:
        _in_backends[threading.get_ident()] = lambda: None
        try:
            meeting.set_result(action())
        except BaseException as error:  # noqa: BLE001 - it is raised by who waits
            meeting.set_exception(error)
        finally:
            del _in_backends[threading.get_ident()]

    threading.Thread(target=meet, name="weft-meet", daemon=True).start()
    patience = Patience(processes)
    while not wait([meeting], TURN.total_seconds()).done:
        if patience.is_in_vain:
            raise patience.lost()
        patience.take_turn()
    return in_time(meeting.result, processes, patience)


@final
class Patience:
    """How long this process has waited for others, and what they did in the meantime."""

    def __init__(self, processes: Processes, start: float | None = None) -> None:
        self._here = world.current()
        self._others = [process for process in processes if process != self._here.process]
        self._start = time.monotonic() if start is None else start
        self._observer: Observer | None = None
        self._warned = False

    @property
    def seconds(self) -> float:
        """How long it has been."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """Whether it has been longer than the timeout."""
        return self.seconds >= self._here.timeout.total_seconds()

    @property
    def is_in_vain(self) -> bool:
        """Whether one of the others has left or failed, as far as has been seen."""
        return self._observer is not None and self._observer.is_in_vain

    def take_turn(self) -> None:
        """Looks after the others while waiting, and says once that it takes long."""
        if self._observer is None:
            self._observer = Observer(self._others)
        self._observer.look()
        own_refusals.raise_heard(self._observer.notes)
        if _looks.look is not None:
            _looks.look()
        if own_refusals.has_left_before(self._observer.notes):
            raise self.lost() from None
        if self.seconds > LONG and not self._warned:
            self._warned = True
            lines = self._lines(self._observer.signs())[0]
            _log.warning("%s", "\n".join(lines))

    def lost(self, cause: Exception | None = None) -> Exception:
        """The error for a call in which others did not take part: what one of them has refused, or else who did not come."""
        seconds = self.seconds
        observer = self._observer or Observer(self._others)
        observer.look()
        refused = own_refusals.heard(observer.notes)
        if refused is not None:
            return refused
        call = current_call.current()
        if call is not None:
            heartbeat.note_giving_up(call)
        lines, is_mismatch = self._lines(observer.signs(), seconds)
        if is_mismatch:
            lines.append(f"  {current_call.SAME_CALLS}. WEFT_CHECK=1 checks each of them.")
        error = (MismatchError if is_mismatch else TimeoutError)("\n".join(lines))
        if cause is not None:
            error.add_note(f"The backend says: {str(cause).strip()}")
        return error

    def _lines(self, signs: list[Sign], seconds: float | None = None) -> tuple[list[str], bool]:
        """What is to say, and whether processes make different calls."""
        seconds = self.seconds if seconds is None else seconds
        call = current_call.current() or CollectiveCall("a collective", "something")
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
            if all(sign.left and sign.failure is None for sign in blamed):
                lines.append(f"  If it ended well, this call is one that it does not make. {current_call.SAME_CALLS}.")
        elif not elsewhere:
            lines.append(f"  If it is only slow, wait longer than {limit:g} s: weft.distributed.init(timeout=...).")
        return lines, bool(elsewhere and not blamed)
