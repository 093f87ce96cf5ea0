"""Which attention kernel torch takes: it asks by looking at the tensors, and reads none of their values."""

from __future__ import annotations

from typing import cast

import torch

from ..engine.handlers import handler
from ..engine.local_run import swapped
from ..engine.op_plan import tensors_in
from ..engine.sharded import ShardedTensor
from ..runtime.holding import holding

aten = torch.ops.aten

Args = tuple[object, ...]
Kwargs = dict[str, object]


@handler(aten._fused_sdp_choice.default)
def _choice(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> object:
    inner = iter([_outside(x) for x in tensors_in(args, kwargs)])
    return func(*cast(Args, swapped(args, inner)), **cast(Kwargs, swapped(kwargs, inner)))


def _outside(x: torch.Tensor) -> torch.Tensor:
    """A plain tensor that looks like this one from outside."""
    if not isinstance(x, ShardedTensor):
        return x
    if holding(x._layout).unified and x._value.pieces:
        plain = x._value.pieces[0].detach()
    else:
        plain = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return plain.requires_grad_(x.requires_grad)
