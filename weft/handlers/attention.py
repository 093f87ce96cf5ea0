"""Which attention kernel torch takes: it asks by looking at the tensors, and reads none of their values."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall
from ..runtime.holding import holding

aten = torch.ops.aten


@handler(aten._fused_sdp_choice.default)
def _choice(call: BoundCall) -> object:
    return call.on([_outside(x) for x in call.tensors])


def _outside(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor that looks like this one from outside."""
    if not isinstance(x, ShardedTensor):
        return x
    if holding(x._layout).unified and x._value.pieces:
        plain = x._value.pieces[0].detach()
    else:
        plain = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return plain.requires_grad_(x.requires_grad)
