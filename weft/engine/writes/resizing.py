"""Tensors that are given another shape in memory that they share with others: a view, or what somebody has a view of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...runtime.strides import Strides, reach_of
from ..sharded import ShardedTensor
from .turned import views_of

__all__ = ["resize_shared"]


def resize_shared(x: ShardedTensor, shape: Sequence[int], strides: Strides) -> bool:
    """Gives a tensor another shape where it lies; False where nobody else has its memory. Raises where that would have to grow."""
    base = x._base if x._is_view() else x
    if not isinstance(base, ShardedTensor) or (base is x and not (x._value.is_viewed and views_of(x))):
        return False
    start = int(x.storage_offset())
    if start + reach_of(shape, strides) > int(base.storage_offset()) + reach_of(base.shape, base.stride()):
        raise RuntimeError(
            f"cannot resize a tensor of shape {list(x.shape)} to {list(shape)}: it shares memory with views that would have to grow "
            "with it: resize a copy, x.clone()"
        )
    torch.ops.aten.as_strided_.default(x, list(shape), list(strides), start)
    return True
