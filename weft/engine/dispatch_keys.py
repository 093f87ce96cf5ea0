"""The dispatch keys of sharded tensors: those of their device, and one that lets linear layers come as one op.

Torch says a linear layer by views and a product before autograd sees it, so that it comes to a subclass as four ops, and its
gradient as nine. For a backend with a kernel of its own the layer is one op, and its gradient another. So sharded tensors
have, beside the backend of their device, one that comes before it and that no device has any more: that of torch's lazy
tensors. A subclass comes before all kernels, and what autograd does for one backend it does for all. Decision 35 says more.
"""

from __future__ import annotations

import torch

from ..caches import cached
from ..rules.ops.matmul import linear_backward

__all__ = ["AS_ONE", "keys_of"]

Keys = torch._C.DispatchKeySet
aten = torch.ops.aten

AS_ONE = frozenset({aten.linear.default, aten.linear_backward.default})
"""Ops that come as one, and that plain tensors see as those that they are made of."""
_AS_ON_DEVICES = (aten.mish_backward.default, aten.native_channel_shuffle.default, aten.silu_backward.default)
"""Ops that torch says by others where a backend has no kernel for them; host and GPUs have."""

_kernels = torch.library.Library("aten", "IMPL")
_kernels.impl("linear_backward", linear_backward, "CompositeImplicitAutograd")
for _op in (*AS_ONE, *_AS_ON_DEVICES):
    _kernels.impl(_op, _op.decompose, "Lazy")  # for lazy tensors, if there should be any


@cached(16)
def keys_of(device: str) -> Keys:
    """What tensors on a kind of device have beside the keys that torch gives them.

    >>> keys_of("cpu").has(torch._C.DispatchKey.AutocastCPU)
    True
    """
    autocast = f"Autocast{device.upper()}"  # torch gives that of the first backend
    keys = Keys(torch._C.DispatchKey.AutogradLazy)
    return keys | Keys(getattr(torch._C.DispatchKey, autocast)) if hasattr(torch._C.DispatchKey, autocast) else keys
