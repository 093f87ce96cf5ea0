"""`HostPool`: large host memory that has been used before, so that no result pays page faults twice.

A block is a storage that this module keeps. When nobody else has it any more, the next result of that size gets it.
Torch's own results come from the C library, see `host_memory`.

Torch tells nobody when the last user of a storage goes, other than by freeing it. So the two owners' counts are asked: that
of torch, for tensors, views, NumPy arrays and graphs, and that of Python, for the storage object itself, which torch
counts once however many hold it. What Python says of an object that only a list has is measured, not assumed.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import final

import torch

__all__ = ["HostPool", "pool", "pooled_empty"]

LEAST = 1 << 20
"""Bytes from which on a result gets a kept block; smaller ones hardly fault."""


@final
class HostPool:
    """Kept blocks, those used last at the end, of at most `bound` bytes together where that can be."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._blocks: list[torch.UntypedStorage] = []
        self._kept = 0
        self._lock = threading.Lock()

    def block(self, nbytes: int) -> torch.UntypedStorage:
        """A block of this size that nobody uses."""
        with self._lock:
            for at in range(len(self._blocks) - 1, -1, -1):
                if self._blocks[at].nbytes() == nbytes and self._is_free(at):
                    self._blocks.append(self._blocks.pop(at))
                    return self._blocks[-1]
            made = torch.UntypedStorage(nbytes)
            if nbytes <= self.bound:
                self._make_way(nbytes)
                self._blocks.append(made)
                self._kept += nbytes
            return made

    def forget(self) -> None:
        """Gives up all blocks; those in use live as long as their users."""
        with self._lock:
            self._blocks.clear()
            self._kept = 0

    @property
    def kept(self) -> int:
        """Bytes of all kept blocks, used or not."""
        return self._kept

    def _make_way(self, nbytes: int) -> None:
        """Gives up the blocks that were not used for longest."""
        at = 0
        while self._kept + nbytes > self.bound and at < len(self._blocks):
            self._kept -= self._blocks.pop(at).nbytes()

    def _is_free(self, at: int) -> bool:
        blocks = self._blocks
        if torch._C._storage_Use_Count(blocks[at]._cdata) != 1 or _holders(blocks, at) != _ONLY_A_LIST:
            return False
        return not blocks[at].is_shared()


def _holders(objects: list[torch.UntypedStorage], at: int) -> int:
    """How many references Python counts to an object of a list: that of the list, and those of this very question."""
    return sys.getrefcount(objects[at])


_ONLY_A_LIST = _holders([torch.UntypedStorage(0)], 0)
"""The answer for an object that nothing but a list has; it differs between versions of Python."""


pool = HostPool(0)
"""The blocks of this process; none are kept until `host_memory` says how many bytes may be."""


def pooled_empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor with any values in it, like `torch.empty`.

    >>> pooled_empty((2, 3), torch.float32, torch.device("cpu")).shape
    torch.Size([2, 3])
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if not LEAST <= nbytes <= pool.bound or device.type != "cpu" or torch._C._len_torch_dispatch_stack():
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    return torch.empty(0, dtype=dtype, device=device).set_(pool.block(nbytes), 0, tuple(shape))  # type: ignore[call-overload, no-any-return]
