"""The bytes of tensors: seen where they lie, and brought to the host a bucket at a time."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import torch

from ..runtime.memory.accelerator import address
from .deferred import Deferred

__all__ = ["BUCKET", "host_parts", "lies_plain", "readable_bytes", "writable_bytes"]

BUCKET = 16 << 20
"""Bytes of a tensor that are copied at once where they cannot be written or read in place."""


def lies_plain(x: torch.Tensor) -> bool:
    """Whether a tensor's elements lie in host memory as they are, in row-major order.

    >>> x = torch.ones(2, 3, dtype=torch.complex64)
    >>> lies_plain(x), lies_plain(x.mT), lies_plain(x.conj())
    (True, False, False)
    """
    return x.device.type == "cpu" and x.is_contiguous() and not x.is_conj() and not x.is_neg()


def readable_bytes(x: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, for reading: what is shared until it is written to stays shared.

    >>> list(readable_bytes(torch.tensor([1, 2], dtype=torch.uint8)))
    [1, 2]
    >>> list(readable_bytes(torch.tensor([1, 2, 3], dtype=torch.uint8)[1:]))
    [2, 3]
    """
    return _at(address(x), x).toreadonly()


def writable_bytes(x: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor of the host, for writing; what is shared until it is written to is copied first."""
    return _at(x.data_ptr(), x)


def _at(first: int, x: torch.Tensor) -> memoryview:
    assert lies_plain(x)
    size = x.numel() * x.itemsize
    if not size:
        return memoryview(b"")
    lying = (ctypes.c_ubyte * size).from_address(first)
    lying.kept = x  # type: ignore[attr-defined] # as long as the bytes are seen, the tensor is there
    return memoryview(lying).cast("B")


def host_parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements of a tensor in row-major order, as contiguous tensors of the host, of a bucket each if copied.

    >>> [part.tolist() for part in host_parts(torch.arange(4).reshape(2, 2).mT)]
    [[[0, 2], [1, 3]]]
    """
    if isinstance(x, Deferred):
        yield from x.parts(BUCKET)
    elif lies_plain(x):
        yield x
    elif x.numel() * x.itemsize <= BUCKET:
        yield x.cpu().resolve_conj().resolve_neg().contiguous()
    else:
        rows = max(1, BUCKET // max(1, math.prod(x.shape[1:]) * x.itemsize))
        for first in range(0, x.shape[0], rows):
            part = x[first : first + rows]
            yield from host_parts(part[0] if rows == 1 else part)
