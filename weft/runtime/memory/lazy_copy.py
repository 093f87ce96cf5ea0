"""Copies that cost nothing until they are written to, and which memory can have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..strides import is_dense
from ..traced import is_traced

__all__ = ["is_aside", "is_shared_until_written", "lazy_clone", "may_overlap", "part", "untraced_clone"]

is_shared_until_written: Callable[[torch.Tensor], bool] = torch._C._is_cow_tensor  # type: ignore[attr-defined]
"""Whether a tensor has its memory together with others until one of them is written to."""


def lazy_clone(x: torch.Tensor) -> torch.Tensor:
    """A copy that costs nothing until one of the two is written to.

    >>> a = torch.zeros(3)
    >>> b = lazy_clone(a)
    >>> _ = a.add_(1)
    >>> b
    tensor([0., 0., 0.])
    """
    # A compiler makes copies only where something is written, and knows no lazy ones: it would call torch for each.
    return x.clone() if is_traced() else untraced_clone(x)


def untraced_clone(x: torch.Tensor) -> torch.Tensor:
    """The same, where it is known that no compiler looks on."""
    # A copy has no gaps, and no element in two places, as slices, expanded tensors and windows do: it may be written to.
    if x.storage_offset() or not (x.is_contiguous() or is_dense(tuple(x.shape), x.stride())):
        return x.clone()
    # Writing to a copy-on-write view copies its whole storage: not worth it for a small part of a large one. Of nothing there
    # is nothing to save, and `out=` may make it grow, which torch cannot do to memory that is shared.
    storage = x.untyped_storage()
    nbytes = storage.nbytes()
    if not nbytes or 2 * x.nbytes < nbytes:
        return x.clone()
    # Torch parts copies on the default stream: others do not wait for it, and a CUDA graph that is being recorded leaves it out.
    if x.is_cuda and is_aside(x.get_device()):
        return x.clone()
    # NumPy may write to memory that was handed to it, unseen; torch marks it as not resizable.
    if not storage.resizable():
        return x.clone()
    try:
        return _clone(x)
    except RuntimeError:
        # Memory that torch did not allocate (NumPy's, DLPack's, shared memory) cannot be copy-on-write.
        return x.clone()


_clone: Callable[[torch.Tensor], torch.Tensor] = torch._lazy_clone


def is_aside(device: int) -> bool:
    """Whether work on a GPU goes to another stream than its default one."""
    return bool(torch._C._cuda_getCurrentRawStream(device))


def part(tensors: Iterable[torch.Tensor]) -> None:
    """Gives tensors that share memory until one of them is written to memory of their own, on whatever stream they are used.

    >>> a = torch.zeros(3)
    >>> b = lazy_clone(a)
    >>> part([b])
    >>> is_shared_until_written(b)
    False
    """
    shared = [x for x in tensors if is_shared_until_written(x)]
    aside = {x.get_device() for x in shared if x.is_cuda and is_aside(x.get_device())}
    for device in aside:  # what is copied must be there, and the copy before it is used
        torch.cuda.synchronize(device)
    for x in shared:
        x.data_ptr()
    for device in aside:
        torch.cuda.synchronize(device)


def may_overlap(x: torch.Tensor) -> bool:
    """Whether two indices may name one element in memory."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
