"""Tensors that are given another shape in memory that they share with others: a view, or what somebody has a view of."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from ...runtime.strides import Strides, reach_of
from ..kept import storages
from ..sharded import ShardedTensor
from .overlapping import shown_memory
from .turned import views_of

__all__ = ["resize_shared", "root_of"]


def root_of(x: ShardedTensor) -> ShardedTensor | None:
    """What a tensor is a view of, detached or not, or was cut out of in place, if it is a part of another."""
    base = x._base if x._is_view() else x
    if not isinstance(base, ShardedTensor):
        return None
    root = _end_of(base)
    if root is not x and base is not x and shown_memory(root) not in (id(root), shown_memory(x)):
        root = _end_of(x)  # a view that was given other memory, or what is a view of that
    return None if root is x else root


def _end_of(x: ShardedTensor) -> ShardedTensor:
    """What a tensor shows in the end."""
    while (shown := x._value.shown) is not None:
        x = shown.base.tensor
    return x


def resize_shared(x: ShardedTensor, shape: Sequence[int], strides: Strides) -> bool:
    """Gives a tensor another shape where it lies; False where its memory would have to grow, which raises where others share it."""
    root = root_of(x)
    base = x if root is None else root
    start = int(x.storage_offset())
    if start + reach_of(shape, strides) > int(base.storage_offset()) + reach_of(base.shape, base.stride()):
        if base is x and not (x._value.is_viewed and views_of(x)) and not _is_shared(x):
            return False
        raise RuntimeError(
            f"cannot resize a tensor of shape {list(x.shape)} to {list(shape)}: it shares memory with views that would have to grow "
            "with it: resize a copy, x.clone()"
        )
    torch.ops.aten.as_strided_.default(x, list(shape), list(strides), start)
    return True


def _is_shared(x: ShardedTensor) -> bool:
    """Whether another tensor has some of its memory by a name that torch does not tell, as what it was detached from."""
    if not x.numel() and not x._is_view():
        return False
    x._value.turned = None  # who is known by that alone is nobody's, and what is written makes it wrong
    mine = {storage._cdata for storage in storages(x)}
    others = (y for y in gc.get_objects() if type(y) is ShardedTensor.final and y is not x)
    return any(_end_of(y) is x or any(storage._cdata in mine for storage in storages(y)) for y in others)
