"""Reading from the memory of another process of the same host: what one gives another is then copied once.

A socket copies everything twice, into the system and out of it, and what is sent in one message is packed and unpacked beside.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, final

from ....caches import cached
from ....errors import WeftError

__all__ = ["NOBODY", "Neighbours", "Span", "read_memory"]

MOST_SPANS = 1024
"""How many stretches of memory the system takes at once."""
MOST_BYTES = 1 << 30
"""How many bytes it is asked for at once: it gives up to two gigabytes, and says nothing of the rest."""

Span = tuple[int, int]
"""A stretch of memory: its address, and how many bytes."""


@final
@dataclass(frozen=True, slots=True)
class Neighbours:
    """Whom of a group this process can read from, each with its process id; and who can read from this one."""

    readable: Mapping[int, int]
    readers: frozenset[int]


NOBODY = Neighbours({}, frozenset())
"""Where all that is given is sent."""


def read_memory(process: int, theirs: Sequence[Span], ours: Sequence[Span]) -> None:
    """Copies stretches of another process's memory to stretches of this one's, as long each.

    >>> import os, torch
    >>> theirs, ours = torch.ones(3), torch.zeros(3)
    >>> read_memory(os.getpid(), [(theirs.data_ptr(), 12)], [(ours.data_ptr(), 12)])
    >>> ours
    tensor([1., 1., 1.])
    """
    for to, from_ in _calls(theirs, ours):
        wanted, count = sum(to[1::2]), len(to) // 2
        read = _reader()(process, to.buffer_info()[0], count, from_.buffer_info()[0], count, 0)
        if read != wanted:
            why = os.strerror(ctypes.get_errno()) if read < 0 else f"only {read:,} of {wanted:,} bytes are there"
            raise WeftError(f"cannot read the memory of process id {process} on this host: {why}")


def _calls(theirs: Sequence[Span], ours: Sequence[Span]) -> Iterator[tuple[array[int], array[int]]]:
    """The stretches to write to and to read from, address and size by turns, as many as the system takes at once."""
    to, from_, left = array("Q"), array("Q"), MOST_BYTES
    for (there, size), (here, _) in zip(theirs, ours, strict=True):
        done = 0
        while done < size:
            part = min(size - done, left)
            to.extend((here + done, part))
            from_.extend((there + done, part))
            done, left = done + part, left - part
            if not left or len(to) == 2 * MOST_SPANS:
                yield to, from_
                to, from_, left = array("Q"), array("Q"), MOST_BYTES
    if to:
        yield to, from_


@cached(1)
def _reader() -> Callable[..., int]:
    """The system's own function; Linux has it."""
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    address, count = ctypes.c_void_p, ctypes.c_ulong
    function.argtypes = [ctypes.c_int, address, count, address, count, count]
    return cast("Callable[..., int]", function)
