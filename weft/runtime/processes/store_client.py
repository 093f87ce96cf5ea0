"""Questions to the store, which may never answer: a thread asks, and whoever waits for it can stop waiting.

Torch's store has no limit on how long most of its calls take; where its host cannot be reached, they never return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Generic, TypeVar, final

from . import fork

__all__ = ["REPLY", "Question", "asked"]

REPLY = timedelta(seconds=5)
"""How long the store may take for an answer."""
T = TypeVar("T")


@final
class Question(Generic[T]):
    """Something that a thread does, and its outcome once there is one."""

    def __init__(self, action: Callable[[], T]) -> None:
        self._action = action
        self._answer: list[T] = []
        self._error: Exception | None = None
        self._ended = threading.Event()
        _clerk_for(self)

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._answer.append(self._action())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
            self._error = error

    def end(self) -> None:
        """Lets those that wait go on."""
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Whether there is an outcome, after at most so many seconds."""
        return self._ended.wait(seconds)

    def answer(self) -> T:
        """The outcome; raises what the action raised."""
        if self._error is not None:
            raise self._error
        return self._answer[0]


def asked(action: Callable[[], T], limit: timedelta = REPLY) -> T:
    """What an action gives, or a RuntimeError if it takes too long; then it is left alone.

    >>> asked(lambda: 1 + 1)
    2
    """
    question = Question(action)
    if not question.wait(limit.total_seconds()):
        raise RuntimeError(f"the store has not answered within {limit.total_seconds():g} s")
    return question.answer()


@final
class _Clerk:
    """A thread that asks one question after another, as long as it gets answers."""

    def __init__(self) -> None:
        self.questions: SimpleQueue[Question[object]] = SimpleQueue()
        threading.Thread(target=self._run, name="weft-store", daemon=True).start()

    def _run(self) -> None:
        while True:
            question = self.questions.get()
            question.run()
            _idle.append(self)
            question.end()
            del question


_idle: list[_Clerk] = []


def _clerk_for(question: Question[T]) -> None:
    try:
        clerk = _idle.pop()
    except IndexError:
        clerk = _Clerk()
    clerk.questions.put(question)  # type: ignore[arg-type]


# The threads are the parent's: a child asks others.
fork.on_fork(_idle.clear)
