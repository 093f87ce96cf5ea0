"""Gated linear units along a split dim: each device receives what it does not hold of the two halves of its result."""

from __future__ import annotations

from typing import cast

import torch

from ...engine.arguments import argument, as_dim
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged, resolved
from ...engine.sharded import ShardedTensor
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall
from ..split_dims.reductions import wide

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


def _is_halved(x: torch.Tensor, dim: int) -> bool:
    split = isinstance(x, ShardedTensor) and x.dim() > 0 and bool(x._layout.splits[dim])
    return split and x.shape[dim] % 2 == 0 and x.is_floating_point()  # torch refuses others


def _halves(x: torch.Tensor, dim: int, op: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What is gated, and the gate."""
    whole = resolved(cast(ShardedTensor, x), op)
    half = x.shape[dim] // 2
    first, second = (_half(whole, dim, start, half, op) for start in (0, half))
    return wide(first), wide(second).sigmoid()


def _half(x: ShardedTensor, dim: int, start: int, count: int, op: str) -> ShardedTensor:
    shape = [count if d == dim else size for d, size in enumerate(x.shape)]
    runs = tuple(Run(size, source=start if d == dim else 0) for d, size in enumerate(shape))
    return rearranged([x], x._layout, shape, [Part(0, runs)], op, lambda piece: piece.narrow(dim, start, count))


@handler(aten.glu.default, may_be_direct=True)
def _glu(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    dim = as_dim(argument(func, args, kwargs, "dim"), x.dim())
    if not _is_halved(x, dim):
        return run_by_rule(call)
    value, gate = _halves(x, dim, str(func))
    return (value * gate).to(x.dtype)


@handler(aten.glu_backward.default, may_be_direct=True)
def _glu_backward(call: BoundCall) -> object:
    func, args = call.func, call.args
    grad, x = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    dim = as_dim(args[2], x.dim())
    if not _is_halved(x, dim):
        return run_by_rule(call)
    value, gate = _halves(x, dim, str(func))
    flow = wide(grad) * gate
    return aten.cat.default([flow.to(x.dtype), (flow * value * (1 - gate)).to(x.dtype)], dim)
