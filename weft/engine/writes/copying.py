"""Copying into memory in which several indices may name one element."""

from __future__ import annotations

import torch

__all__ = ["copy_once"]


def copy_once(x: torch.Tensor, value: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Writes a value of the same shape to a tensor, to elements that are expanded once: torch refuses to do it again.

    >>> x = torch.zeros(2, 1).expand(2, 3)
    >>> copy_once(x, torch.ones(2, 3))
    >>> x
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    for dim, (size, stride) in enumerate(zip(x.shape, x.stride(), strict=True)):
        if size > 1 and stride == 0:
            x, value = x.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    x.copy_(value, non_blocking=non_blocking)
