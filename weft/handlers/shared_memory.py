"""Whether one tensor may have the memory of another: torch asks before `x.data = y`."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..engine.sharded import ShardedTensor
from ..rules.call import BoundCall

aten = torch.ops.aten

_SHALLOW = aten._has_compatible_shallow_copy_type.default
"""What torch asks before `x.data = y` makes `x` share the memory of `y`."""


def _can_share(keys: torch._C.DispatchKeySet, x: torch.Tensor, y: torch.Tensor) -> bool:
    """A plain tensor can't have the memory of a sharded one; all else is as torch says."""
    if isinstance(y, ShardedTensor) and not isinstance(x, ShardedTensor):
        return False
    with torch._C._AutoDispatchBelowAutograd():
        return bool(_SHALLOW.redispatch(keys & torch._C._after_autograd_keyset, x, y))


@handler(_SHALLOW)
def _can_share_below_autograd(call: BoundCall) -> bool:
    x, y = call.tensors
    return isinstance(x, ShardedTensor) or not isinstance(y, ShardedTensor)


# Torch answers before it dispatches to subclasses, so its own answer has to be replaced.
_answers = torch.library.Library("aten", "IMPL")
for _key in ("AutogradCPU", "AutogradCUDA", "AutogradMeta"):
    _answers.impl("_has_compatible_shallow_copy_type", _can_share, _key, with_keyset=True)
