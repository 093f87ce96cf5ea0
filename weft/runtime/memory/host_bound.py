"""Freed memory that the C library keeps between pieces in use, held to the bound of the pool.

The library gives back what is free at the end of its memory, and nothing else. A program that keeps something small of every
step (its losses) puts that into the gaps that large results leave; the next results do not fit there any more, and memory
grows with every step while hardly any is in use. So whenever Python looks for garbage, which it does as often as things are
kept, it is asked how much is free, and the pages of that go back.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["HeldToBound"]

_YOUNGEST = 0
"""The collections of Python that come too often to ask anything then."""
_PAUSE = 1.0
"""Seconds between two questions at least."""


class _MallInfo(ctypes.Structure):
    """What `mallinfo2` of glibc says, in bytes and pieces."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class HeldToBound:
    """Gives the pages of free memory back to the system where they are more than `bound` bytes."""

    def __init__(self, libc: ctypes.CDLL, bound: int) -> None:
        self.bound, self._libc, self._next = bound, libc, 0.0
        self._asked = getattr(libc, "mallinfo2", None)  # before glibc 2.33 there is one that counts to 2 GiB only
        if self._asked is not None:
            self._asked.restype = _MallInfo

    def watch(self) -> None:
        """Looks whenever Python has looked for garbage, for as long as the program runs."""
        if self._asked is not None:
            gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] > _YOUNGEST and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PAUSE
            self.hold()

    def hold(self) -> None:
        """Gives back what is beyond the bound."""
        assert self._asked is not None
        found = self._asked()
        # Pages that were given back before still count as free: those that the process has are what matters.
        if found.fordblks > self.bound and _own_pages() - found.uordblks > self.bound:
            self._libc.malloc_trim(0)


def _own_pages() -> int:
    """Bytes of memory that the system holds for this process alone."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), 0)
