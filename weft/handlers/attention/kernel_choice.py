"""Which attention kernel torch takes: it asks by looking at the tensors, and reads none of their values."""

from __future__ import annotations

import torch

from ...engine.handlers import handler
from ...engine.memory import held_whole
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...runtime.strides import dense_strides

aten = torch.ops.aten


@handler(aten._fused_sdp_choice.default)
def _choice(call: BoundCall) -> object:
    return call.on([_outside(x) for x in call.tensors])


def _outside(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor that looks like this one from outside."""
    if not isinstance(x, ShardedTensor):
        return x
    whole = held_whole(x)
    if whole is None:
        shape = tuple(_shortened(size) for size in x.shape)
        strides = x.stride() if shape == x.shape else dense_strides(shape, x.stride())
        whole = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)
    return whole.detach().requires_grad_(x.requires_grad)


_LONG = 4096
"""The sizes from which on torch does not ask how large something is, but what it divides by."""


def _shortened(size: int) -> int:
    """A size that is as good as another, for a stand-in of something that may be too large for one device.

    >>> _shortened(131_073), _shortened(100)
    (4097, 100)
    """
    return size if size < 2 * _LONG else _LONG + size % _LONG
