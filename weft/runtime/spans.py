"""Spans: what this process is doing, told to torch's profiler while somebody profiles; else they cost next to nothing."""

from __future__ import annotations

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
    Spans.watched += 1
    try:
        yield
    finally:
        Spans.watched -= 1
