"""Which attention kernel torch takes: it asks by looking at the tensors, and reads none of their values."""

from __future__ import annotations

import torch

from ...engine.handlers import handler
from ...engine.memory import held_whole
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall

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
        whole = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return whole.detach().requires_grad_(x.requires_grad)
