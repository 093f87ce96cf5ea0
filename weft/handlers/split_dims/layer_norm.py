"""Layer norm and RMS norm over split features: small all-reduces of statistics instead of gathering activations."""

from __future__ import annotations

import math

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor
from ...engine.strategy import BroughtTensor, Strategy, cheapest
from ...rules.call import BoundCall
from ...sharding.placements import ReduceOp
from .reductions import moments, wide
from .swap_split import with_whole

aten = torch.ops.aten


def _features(call: BoundCall) -> list[int]:
    rank = call.tensor("input").dim()
    return list(range(rank - len(call.integers("normalized_shape")), rank))


def _stays_split(call: BoundCall) -> bool:
    """Whether features are split, and two all-reduces of statistics are cheaper than gathering them."""
    x, dims = call.tensor("input"), _features(call)
    if not isinstance(x, ShardedTensor) or x._layout.pending or not x.numel():
        return False
    axes = [axis for dim in dims for axis in x._layout.splits[dim]]
    if not axes:
        return False
    whole = with_whole(x._layout, dims)
    waiting = whole.with_pending(dict.fromkeys(axes, ReduceOp.SUM))
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.shape))
    gathered = BroughtTensor(x._layout, whole, tuple(x.shape), x.dtype.itemsize)
    statistics = BroughtTensor(waiting, whole, shape, x.dtype.itemsize, times=2)
    return cheapest(
        [Strategy("gather the features", False, (gathered,)), Strategy("reduce statistics", True, (statistics,))]
    )


@handler(aten.native_layer_norm.default, may_be_direct=True)
def _layer_norm(call: BoundCall) -> object:
    if not _stays_split(call):
        return run_by_rule(call)
    x, weight, bias = call.tensor("input"), call.optional("weight"), call.optional("bias")
    value = wide(x)
    mean, variance = moments(value, _features(call), 0)
    scale = (variance + call.number("eps")).rsqrt()
    out = (value - mean) * scale
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.to(x.dtype), mean, scale


@handler(aten._fused_rms_norm.default, may_be_direct=True)
def _rms_norm(call: BoundCall) -> object:
    if not _stays_split(call):
        return run_by_rule(call)
    x, weight, eps = call.tensor("input"), call.optional("weight"), call.optional_number("eps")
    value = wide(x)
    squares = _mean(value * value, _features(call))
    scale = (squares + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    out = value * scale
    return (out if weight is None else out * weight).to(x.dtype), scale


@handler(aten.native_layer_norm_backward.default, may_be_direct=True)
def _layer_norm_backward(call: BoundCall) -> object:
    if not _stays_split(call):
        return run_by_rule(call)
    unit = (wide(call.tensor("input")) - call.tensor("mean")) * call.tensor("rstd")
    scaled = _scaled(call)
    rest = scaled - _mean(scaled, _features(call))
    return _gradients(call, rest, scaled, unit)


@handler(aten._fused_rms_norm_backward.default, may_be_direct=True)
def _rms_norm_backward(call: BoundCall) -> object:
    if not _stays_split(call):
        return run_by_rule(call)
    scaled = _scaled(call)
    return _gradients(call, scaled, scaled, wide(call.tensor("input")) * call.tensor("rstd"))


def _mean(x: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return x.sum(dims, keepdim=True) / math.prod(x.shape[dim] for dim in dims)


def _scaled(call: BoundCall) -> torch.Tensor:
    """The gradient of what was normalized, before its scale."""
    flow, weight = wide(call.tensor("grad_out")), call.optional("weight")
    return flow if weight is None else flow * weight


def _gradients(
    call: BoundCall, rest: torch.Tensor, scaled: torch.Tensor, unit: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    """The gradients that the mask asks for: of the input, the scale and, where there is one, the shift."""
    dims, dtype, flow = _features(call), call.tensor("input").dtype, wide(call.tensor("grad_out"))
    ahead = list(range(dims[0]))

    def summed(value: torch.Tensor) -> torch.Tensor:
        return (value.sum(ahead) if ahead else value).to(dtype)

    of_input, of_scale, *of_shift = call.flags("output_mask")
    back = (rest - unit * _mean(scaled * unit, dims)) * call.tensor("rstd") if of_input else None
    return (
        None if back is None else back.to(dtype),
        summed(flow * unit) if of_scale else None,
        *(summed(flow) if wanted else None for wanted in of_shift),
    )
