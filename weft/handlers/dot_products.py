"""Dot products of conjugates: torch computes some of what these are conjugates of, and gives the conjugate of that."""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

aten = torch.ops.aten

_OTHERS = {aten.dot.default: (True, "tensor"), aten.vdot.default: (False, "other")}
"""Whether the first is a conjugate where the product is one, and what the second is called, which always is."""


@handler(*_OTHERS, may_be_direct=True)
def _dot_product(call: BoundCall) -> object:
    first, name = _OTHERS[call.func]
    is_conjugate = call.tensor(name).is_conj() and call.tensor("self").is_conj() is first
    result = run_by_rule(call)
    if not is_conjugate or not isinstance(result, ShardedTensor):
        return result
    return aten._conj.default(aten._conj_physical.default(result))
