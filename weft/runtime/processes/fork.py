"""Children that are forked from a process of a launch, as `DataLoader` workers are.

A child has what its parent held, but none of its threads and no place among the processes: it may compute, and has to
leave the others alone. What would wait for those threads when it goes away, as backends and stores do, never goes away.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

__all__ = ["check_is_no_child", "is_child", "keep", "note_child", "on_fork", "release"]

_parent: int | None = None
"""The index of the process that this one was forked from."""
_listeners: list[Callable[[], None]] = []
"""Bound: the calls of `on_fork`, one where a module is imported. Cleared: never."""


def on_fork(listener: Callable[[], None]) -> None:
    """Registers what a child has to do first."""
    _listeners.append(listener)


def _forked() -> None:
    for listener in _listeners:
        listener()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def keep(*things: object) -> None:
    """Keeps objects for ever, the end of the interpreter included, unless they are released."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def release(thing: object) -> None:
    """Keeps an object no longer that was kept."""
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(thing))


def note_child(parent: int) -> None:
    """Says that this process was forked from one of a launch."""
    global _parent  # noqa: PLW0603 - a process has one parent
    _parent = parent


def is_child() -> bool:
    """Whether this process was forked from one of a launch."""
    return _parent is not None


def check_is_no_child(what: object) -> None:
    """Raises in a child, which cannot communicate."""
    if _parent is not None:
        raise RuntimeError(
            f"this process was forked from process {_parent} and is none of the launch, so it cannot communicate, as it would for {what}. "
            "Read what it needs before it is forked (x.full_tensor()), and let torchrun start those that work together"
        )
