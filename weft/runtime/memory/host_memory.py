"""Host memory is pooled: freed blocks stay with the process, so that large results do not pay page faults again.

Torch takes CPU memory from the C library. By default glibc gives every large block back to the system when it is
freed, and the next result of that size faults in fresh pages, which costs several times the copy itself. Here glibc is
told to keep freed memory, up to a bound (`WEFT_HOST_POOL` bytes; 0 turns this off), to which it is held (`host_bound`). It does not always find what it
keeps again, so the results of movements and reductions come from kept blocks (`host_pool`), within the same bound.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from ...caches import cached
from .host_bound import HeldToBound
from .host_pool import pool

__all__ = ["empty_cache", "has_room", "keep_freed_memory", "libc_of_pool", "pool_size", "relieve_pressure"]

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGE = 64 << 20
_RESERVE = 0.1
_MOST_KEPT = 2**31 - 1
"""Bytes: mallopt takes a C int."""


@cached(1)
def _libc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p  # no int, which is too short for an address
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def _memory() -> dict[str, int]:
    """The figures of /proc/meminfo that are asked for here, in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines[:3]}  # MemTotal, MemFree, MemAvailable


def _bound() -> int:
    text = os.environ.get("WEFT_HOST_POOL")
    if text is None:
        return min(4 << 30, _memory()["MemTotal"] // 4)
    if not text.isdecimal():
        raise ValueError(f"WEFT_HOST_POOL is a number of bytes, but it is {text!r}")
    return min(int(text), 2**31 - 1 << 12)


def pool_size() -> int:
    """How many bytes of freed memory the C library is told to keep; 0 where it cannot be told.

    >>> pool_size() >= 0
    True
    """
    return 0 if _libc() is None else min(_bound(), _MOST_KEPT)


def keep_freed_memory() -> bool:
    """Tells the C library to keep freed memory up to the bound; whether it was told."""
    libc = _libc()
    if libc is None or (size := pool_size()) == 0:
        return False
    pool.bound = _bound()
    if not (libc.mallopt(_M_MMAP_MAX, 0) and libc.mallopt(_M_TRIM_THRESHOLD, size)):
        return False
    HeldToBound(libc, size).watch()
    return True


def libc_of_pool() -> ctypes.CDLL | None:
    """The C library, where it has been told to keep freed memory."""
    return _libc() if pool.bound else None


def has_room(nbytes: int) -> bool:
    """Whether so many bytes, once freed, would be kept, and the machine has them to spare."""
    return nbytes <= min(pool.bound, _MOST_KEPT) and _is_to_spare(nbytes)


def empty_cache() -> None:
    """Gives the freed host memory that Weft keeps back to the system.

    >>> empty_cache()
    """
    pool.forget()
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def relieve_pressure(nbytes: int) -> None:
    """Before a large result: gives kept memory back when the machine is short of it."""
    if nbytes >= _LARGE and sys.platform.startswith("linux"):
        if not _is_to_spare(nbytes):
            empty_cache()


def _is_to_spare(nbytes: int) -> bool:
    memory = _memory()
    return memory["MemAvailable"] - nbytes >= _RESERVE * memory["MemTotal"]
