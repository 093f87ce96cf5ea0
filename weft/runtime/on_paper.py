"""What a program that runs on paper tells whoever looks on: what is made for a movement, and what no device does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import count
from typing import Protocol, final

import torch

from ..during import during
from ..sharding.mesh import DeviceMesh

__all__ = ["Promise", "aside", "is_aside", "moved_to", "moving", "promised", "promised_by", "resize", "watching"]

_moved_to: ContextVar[DeviceMesh | None] = ContextVar("moved_to", default=None)
moved_to = _moved_to.get
"""The mesh to which something moves, while room for it is made there."""

_is_aside = ContextVar("aside", default=False)
is_aside = _is_aside.get
"""Whether what is computed now is only asked for its shape."""


def moving(mesh: DeviceMesh) -> AbstractContextManager[None]:
    """Inside, what is made is where something moves to."""
    return during(_moved_to, mesh)


def aside() -> AbstractContextManager[None]:
    """Inside, torch is only asked what an op would give: no device computes it.

    >>> with aside():
    ...     is_aside()
    True
    """
    return during(_is_aside, True)


_numbers = count(1)
_promised_by: ContextVar[int | None] = ContextVar("promised_by", default=None)
promised_by = _promised_by.get
"""The number of the promise for which something moves now, where nobody waits for it yet."""

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


class Watcher(Protocol):
    """Who looks on."""

    def waited(self, promise: int) -> None:
        """Something on its way is needed now."""

    def resized(self, x: torch.Tensor) -> None:
        """The memory of a tensor is larger or smaller from now on."""


@final
class Promise:
    """Pieces that are on their way, on paper: they are there already, but whoever takes them waits."""

    def __init__(self, number: int, pieces: tuple[torch.Tensor, ...]) -> None:
        self._number, self._pieces = number, pieces

    def done(self) -> bool:
        """Whether they are there: nobody can tell but who waits."""
        return False

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The pieces; whoever looks on is told that they were waited for."""
        watcher = _watcher.get()
        if watcher is not None:
            watcher.waited(self._number)
        return self._pieces


def promised(action: Callable[[], tuple[torch.Tensor, ...]]) -> Promise:
    """What an action makes, for which nobody waits yet."""
    number = next(_numbers)
    with during(_promised_by, number):
        return Promise(number, action())


def resize(x: torch.Tensor, nbytes: int) -> None:
    """Gives a tensor's storage another size, which torch tells nobody.

    >>> x = torch.ones(4)
    >>> resize(x, 0)
    >>> x.untyped_storage().nbytes()
    0
    """
    if torch._C._is_cow_tensor(x):  # type: ignore[attr-defined]
        x.data_ptr()  # parts it from copies that share its memory: torch cannot write to what it resizes otherwise
    x.untyped_storage().resize_(nbytes)
    watcher = _watcher.get()
    if watcher is not None:
        watcher.resized(x)


def watching(watcher: Watcher) -> AbstractContextManager[None]:
    """Inside, somebody is told what torch does not tell."""
    return during(_watcher, watcher)
