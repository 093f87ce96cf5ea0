"""`during`: what holds inside a block, for the thread or task that enters it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["during"]

T = TypeVar("T")


@contextmanager
def during(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside, a variable of the context has a value; afterwards it has the one that it had.

    >>> depth = ContextVar("depth", default=0)
    >>> with during(depth, 3):
    ...     depth.get()
    3
    """
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)
