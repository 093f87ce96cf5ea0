"""Calls that `torch.fx` records as they stand: sharded tensors that it does not know are constants of its graph.

`make_fx` on sharded tensors, as `torch.func.linearize` uses it, records the ops on these, not what devices do. A call with a tensor that
it does not know, one that a function closes over, it hands on; run piece by piece, that call would not be in the graph, and what it gives
would be a constant, whatever goes in later.
"""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    disable_proxy_modes_tracing,
    track_tensor,
)
from torch.utils._pytree import tree_leaves

from ...rules.call import Args, Kwargs, Op
from ..sharded import ShardedTensor

__all__ = ["recorded"]

_KEYS = torch._C._TorchDispatchModeKey


def recorded(func: Op, args: Args, kwargs: Kwargs) -> object:
    """What a call gives that is recorded as it stands; `NotImplemented` where nobody records, or a compiler is to see the pieces."""
    mode = torch._C._get_dispatch_mode(_KEYS.PROXY)
    if not isinstance(mode, ProxyTorchDispatchMode) or _compiles():
        return NotImplemented
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    known = mode.tracer.tensor_tracker
    new = [x for x in tensors if isinstance(x, ShardedTensor) and x not in known]
    if not new or any(piece in known for x in new for piece in x._value.pieces):
        return NotImplemented
    if len(new) == len(tensors):
        with disable_proxy_modes_tracing():
            return func(*args, **kwargs)
    for x in new:
        constant = mode.tracer.create_arg(x)
        assert isinstance(constant, Node)
        track_tensor(x, mode.tracer.proxy(constant), constant=None, tracer=mode.tracer)
    return func(*args, **kwargs)


def _compiles() -> bool:
    """Whether a compiler looks on, which knows tensors by their pieces."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in (_KEYS.FAKE, _KEYS.FUNCTIONAL))
