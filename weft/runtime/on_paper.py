"""What a program that runs on paper tells whoever looks on: what is made for a movement, and what no device does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..sharding.mesh import DeviceMesh

__all__ = ["aside", "is_aside", "moved_to", "moving"]

_moved_to: ContextVar[DeviceMesh | None] = ContextVar("moved_to", default=None)
moved_to = _moved_to.get
"""The mesh to which something moves, while room for it is made there."""

_is_aside = ContextVar("aside", default=False)
is_aside = _is_aside.get
"""Whether what is computed now is only asked for its shape."""


@contextmanager
def moving(mesh: DeviceMesh) -> Iterator[None]:
    """Inside, what is made is where something moves to."""
    before = _moved_to.set(mesh)
    try:
        yield
    finally:
        _moved_to.reset(before)


@contextmanager
def aside() -> Iterator[None]:
    """Inside, torch is only asked what an op would give: no device computes it.

    >>> with aside():
    ...     is_aside()
    True
    """
    before = _is_aside.set(True)
    try:
        yield
    finally:
        _is_aside.reset(before)
