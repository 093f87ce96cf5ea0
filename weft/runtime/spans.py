"""Spans: what this process is doing, told to torch's profiler while somebody profiles; else they cost next to nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar, final

import torch

from .processes.current_call import site

__all__ = ["COMMUNICATION", "OP", "WAITING", "Spans", "span", "spanned", "watching"]

P = ParamSpec("P")
R = TypeVar("R")

_MARK = "weft"
OP, COMMUNICATION, WAITING = f"{_MARK}::op::", f"{_MARK}::communication::", f"{_MARK}::waiting::"
"""What the names of spans begin with, in torch's events."""


@final
class Spans:
    """Whether anybody looks."""

    watched: ClassVar[int] = 0
    """How many want to see spans."""
    heeding: ClassVar[list[bool]] = []
    """One for each who wants spans, or to be warned of what ops do: while there is nobody, an op asks no more than that, in the least time.

    Bound: those who look on. Cleared: by each of them.
    """
    _changing: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def heed(cls, number: int, *, watched: bool = False) -> None:
        """Counts those who want something, and those who have had enough; `watched` if they want spans."""
        with cls._changing:
            cls.heeding[:] = [True] * (len(cls.heeding) + number)
            cls.watched += number if watched else 0


def span(name: str) -> Any:  # noqa: ANN401 - a context of torch's that has no type
    """Torch's events show the block under this name.

    >>> with span(OP + "an op"):
    ...     pass
    """
    return torch._C._profiler._RecordFunctionFast(name)


def spanned(kind: str, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Shows every call of a function, while somebody looks.

    >>> @spanned(WAITING, "for the sum")
    ... def total(x: list[int]) -> int:
    ...     return sum(x)
    >>> total([1, 2])
    3
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> R:
            if not Spans.watched:
                return function(*args, **kwargs)
            with span(f"{kind}{name}::{site()}"):
                return function(*args, **kwargs)

        return within

    return decorate


@contextmanager
def watching() -> Iterator[None]:
    """Inside, spans are shown."""
    Spans.heed(1, watched=True)
    try:
        yield
    finally:
        Spans.heed(-1, watched=True)
