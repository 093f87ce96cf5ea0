"""Plain tensors beside sharded ones keep plain gradients."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakIdKeyDictionary

from .movement import layout_of, move

__all__ = ["keep_gradient_plain"]

_kept = WeakIdKeyDictionary()
"""The tensors that have the hook. Bound: those that are alive. Cleared: as they go."""


def keep_gradient_plain(x: torch.Tensor) -> None:
    """Lets the gradient of a plain tensor, which met sharded tensors in an op, arrive as a plain tensor.

    >>> import weft
    >>> w = torch.ones(3, requires_grad=True)
    >>> x = weft.shard(torch.ones(4, 3), weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> (x * w).sum().backward()
    >>> w.grad
    tensor([4., 4., 4.])
    """
    if x not in _kept:
        _kept[x] = True
        x.register_hook(_plain)


def _plain(grad: torch.Tensor | None) -> torch.Tensor | None:
    if grad is None or layout_of(grad) is None:  # ops on lists hand on that there is none
        return grad
    return move(grad, None, op="gradient of a plain tensor")
