"""Loss scaling: gradients are divided by the scale, and whether any is not finite is known everywhere."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..engine.moves.movement import to_plain
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

aten = torch.ops.aten


@handler(aten._amp_foreach_non_finite_check_and_unscale_.default)
def _unscale(call: BoundCall) -> None:
    """Writes to the gradients and to the mark of what was found, which is one value for all devices."""
    found, inverse_scale = call.tensor("found_inf"), call.tensor("inv_scale")
    for gradient in call.tensor_list("self"):
        bad = gradient.isfinite().logical_not().any()
        whole = to_plain(bad) if isinstance(bad, ShardedTensor) else bad
        found.copy_(torch.maximum(found, whole.to(found.dtype)))
        gradient.mul_(inverse_scale)
