"""Tensors that are given another shape in memory that they share with others: a view, or what somebody has a view of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...runtime.strides import Strides, reach_of
from ..sharded import ShardedTensor
from .turned import views_of

__all__ = ["resize_shared", "root_of"]


def root_of(x: ShardedTensor) -> ShardedTensor | None:
    """What a tensor is a view of, detached or not, or was cut out of in place, if it is a part of another."""
    base = x._base if x._is_view() else x
    if not isinstance(base, ShardedTensor):
        return None
    while (shown := base._value.shown) is not None:
        base = shown.base.tensor
    return None if base is x else base


def resize_shared(x: ShardedTensor, shape: Sequence[int], strides: Strides) -> bool:
    """Gives a tensor another shape where it lies; False where its memory would have to grow, which raises where a view shares it.

    Whoever has the memory by another name, as `x.detach()`, is not known here: what is left of it stays where it is.
    """
    root = root_of(x)
    base = x if root is None else root
    start = int(x.storage_offset())
    if start + reach_of(shape, strides) > int(base.storage_offset()) + reach_of(base.shape, base.stride()):
        if base is x and not (x._value.is_viewed and views_of(x)):
            return False
        raise RuntimeError(
            f"cannot resize a tensor of shape {list(x.shape)} to {list(shape)}: it shares memory with views that would have to grow "
            "with it: resize a copy, x.clone()"
        )
    torch.ops.aten.as_strided_.default(x, list(shape), list(strides), start)
    return True
