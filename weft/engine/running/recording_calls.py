"""Calls that torch records whole, as `torch.func.linearize` and `make_fx` do: sharded tensors stand in what is recorded as they are.

Torch records a call where it knows all of its tensors. A sharded one that the program has from elsewhere, as the point at which a
function is made linear, it does not know, and would leave the call to us: of its result only the numbers would be left.
"""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import has_proxy_slot, track_tensor

from ...rules.call import BoundCall, Op
from ..sharded import ShardedTensor

__all__ = ["recorded"]

_RECORDS = torch._C._TorchDispatchModeKey.PROXY


def recorded(func: Op, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """What a call gives that is recorded with some of its sharded tensors; NotImplemented where none is."""
    mode = torch._C._get_dispatch_mode(_RECORDS)
    if mode is None:
        return NotImplemented
    tracer = mode.tracer
    given = [x for x in BoundCall(func, args, kwargs).tensors if isinstance(x, ShardedTensor)]
    unknown = [x for x in given if not has_proxy_slot(x, tracer)]
    if not unknown or len(unknown) == len(given):
        return NotImplemented
    for x in unknown:
        track_tensor(x, torch.fx.Proxy(tracer.create_arg(x), tracer), constant=None, tracer=tracer)
    return func(*args, **kwargs)
