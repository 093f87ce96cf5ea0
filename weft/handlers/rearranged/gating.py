"""Gated linear units along a split dim: each device receives what it does not hold of the two halves of its result."""

from __future__ import annotations

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged, resolved
from ...engine.sharded import ShardedTensor
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall
from ...sharding.geometry import resized
from ..split_dims.reductions import wide

aten = torch.ops.aten


def _halves(x: torch.Tensor, dim: int, op: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What is gated, and the gate, along a dim that is split; torch refuses halves that are none, or of no real numbers."""
    if not isinstance(x, ShardedTensor) or not x.dim() or not x._layout.splits[dim]:
        return None
    if x.shape[dim] % 2 or not x.is_floating_point():
        return None
    whole, half = resolved(x, op), x.shape[dim] // 2
    first, second = (_half(whole, dim, start, half, op) for start in (0, half))
    return wide(first), wide(second).sigmoid()


def _half(x: ShardedTensor, dim: int, start: int, count: int, op: str) -> ShardedTensor:
    shape = resized(x.shape, dim, count)
    taken = Part.along(dim, Run(count, source=start), shape)
    return rearranged([x], x._layout, shape, [taken], op, lambda piece: piece.narrow(dim, start, count))


@handler(aten.glu.default, may_be_direct=True)
def _glu(call: BoundCall) -> object:
    x = call.tensor("self")
    halves = _halves(x, call.dim("dim"), str(call))
    if halves is None:
        return run_by_rule(call)
    value, gate = halves
    return (value * gate).to(x.dtype)


@handler(aten.glu_backward.default, may_be_direct=True)
def _glu_backward(call: BoundCall) -> object:
    x, dim = call.tensor("self"), call.dim("dim")
    halves = _halves(x, dim, str(call))
    if halves is None:
        return run_by_rule(call)
    value, gate = halves
    flow = wide(call.tensor("grad_output")) * gate
    return aten.cat.default([flow.to(x.dtype), (flow * value * (1 - gate)).to(x.dtype)], dim)
