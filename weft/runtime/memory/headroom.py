"""Room for copies that are about to be made: page faults are paid ahead, by a thread in the background.

Copies that are made when somebody writes come from the C library, which does not always find the memory that it keeps again:
a block that is asked for at an alignment needs a hole that is a little larger than the one it leaves. What it takes from the
system instead, the copy fills page by page, at several times its own cost.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterable, Sequence

from .host_memory import has_room, libc_of_pool
from .host_pool import LEAST

__all__ = ["Stretch", "populate", "room_for"]

Stretch = tuple[int, int]
"""Some addresses: the first, and how many."""
_AROUND = 64 + 32
"""Bytes that the C library looks for besides, for a block at an alignment of 64, as torch asks for. Asked for such blocks themselves, it would leave
bits of the rest between them, which it keeps for small ones, and the blocks would not grow together again when they are freed."""
_SPARE = 12 << 20
"""Bytes of further blocks, for those that will not fit where others were."""
_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE`: pages become as if somebody had written to them, and keep what is in them. Linux 5.14 has it."""
_PIECE = 4 << 20
"""Bytes that are asked about at once."""
_PAGE = mmap.PAGESIZE


def room_for(sizes: Iterable[int]) -> tuple[Stretch, ...]:
    """Where the C library has blocks of these sizes for this thread; they stay free, for whoever asks next.

    >>> len(room_for([4 << 20, 100])) in (0, 4)  # nothing is kept, or the first and three to spare
    True
    """
    large = sorted((size for size in sizes if size >= LEAST), reverse=True)
    spare = next((size for size in large if size <= _SPARE), _SPARE + 1)
    wanted = [*large, *[spare] * (_SPARE // spare)]
    libc = libc_of_pool()
    if libc is None or not large or not has_room(sum(wanted)):
        return ()
    malloc: Callable[[ctypes.c_size_t], int | None] = libc.malloc
    found: list[Stretch] = []
    for size in wanted:
        first = malloc(ctypes.c_size_t(size + _AROUND))
        if first is None:
            break
        found.append((first, size + _AROUND))
    for first, _ in found:
        libc.free(ctypes.c_void_p(first))
    return tuple(found)


def populate(stretches: Sequence[Stretch]) -> None:
    """Faults in what is not there yet, the last first; whoever uses the memory meanwhile notices nothing.

    >>> populate(room_for([1 << 20]))
    """
    libc = libc_of_pool()
    if libc is None:
        return
    there = ctypes.create_string_buffer(_PIECE // _PAGE)
    for first, size in reversed(stretches):
        begin, end = -(-first // _PAGE) * _PAGE, (first + size) // _PAGE * _PAGE
        for at in range(begin, end, _PIECE):
            length = min(_PIECE, end - at)
            piece = ctypes.c_void_p(at), ctypes.c_size_t(length)
            if not libc.mincore(*piece, there) and 0 in there.raw[: length // _PAGE]:
                libc.madvise(*piece, _POPULATE_WRITE)  # a system that cannot leaves the faults to those who write
