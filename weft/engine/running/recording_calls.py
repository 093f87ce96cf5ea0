"""Calls that `torch.fx` records as they stand: sharded tensors that it does not know are constants of its graph.

`make_fx` on sharded tensors, as `torch.func.linearize` uses it, records the ops on these, not what devices do. A call with a tensor that
it does not know, one that a function closes over, it hands on; run piece by piece, that call would not be in the graph, and what it gives
would be a constant, whatever goes in later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch._ops import OpOverload
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
_ALIAS = torch.ops.aten.alias.default
"""Of what is known before: recorded all the same, since `torch.func.linearize` takes the results of a graph apart in which nothing is."""


def recorded(func: Op, args: Args, kwargs: Kwargs) -> object:
    """What a call gives that is recorded as it stands; `NotImplemented` where nobody records, or a compiler is to see the pieces."""
    mode = torch._C._get_dispatch_mode(_KEYS.PROXY)
    if not isinstance(mode, ProxyTorchDispatchMode) or _compiles():
        return NotImplemented
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    known = mode.tracer.tensor_tracker
    new = [x for x in tensors if isinstance(x, ShardedTensor) and x not in known]
    if not new:
        return NotImplemented
    made_inside = [known[piece].proxy.node for piece in _pieces_of(new) if piece in known]
    if made_inside and not any(isinstance(x, ShardedTensor) and x in known for x in tensors):
        return NotImplemented  # pieces are what is recorded
    if any(map(_follows_from_inputs, made_inside)):
        raise NotImplementedError(
            f"torch.fx would record {func} of a sharded tensor that it is given and of one that is made inside from a plain tensor "
            "that it is given, and keeps track of one kind only: shard all inputs before they are recorded"
        )
    if len(new) == len(tensors) and func is not _ALIAS:
        with disable_proxy_modes_tracing():
            return func(*args, **kwargs)
    for x in new:
        constant = mode.tracer.create_arg(x)
        assert isinstance(constant, Node)
        track_tensor(x, mode.tracer.proxy(constant), constant=None, tracer=mode.tracer)
    return func(*args, **kwargs)


def _pieces_of(tensors: Iterable[ShardedTensor]) -> Iterator[torch.Tensor]:
    """Pieces that may have been made while somebody records; those that are still to be sent of what was made before are none."""
    return (piece for x in tensors if x._value.is_made or x._value.tracers for piece in x._value.pieces)


def _follows_from_inputs(node: Node) -> bool:
    """Whether what a node of the graph gives, or what was written to it since, is other than a constant."""
    found, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.op == "placeholder":
            return True
        writers = {
            user for user in each.users if isinstance(user.target, OpOverload) and user.target._schema.is_mutable
        }
        new = ({*each.all_input_nodes} | writers) - found
        found |= new
        waiting += new
    return False


def _compiles() -> bool:
    """Whether a compiler looks on, which knows tensors by their pieces."""
    return any(torch._C._get_dispatch_mode(key) is not None for key in (_KEYS.FAKE, _KEYS.FUNCTIONAL))
