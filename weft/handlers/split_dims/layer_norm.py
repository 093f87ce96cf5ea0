"""Layer norm and RMS norm over split features: small all-reduces of statistics instead of gathering activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor
from ...planning import move_cost
from ...rules.call import BoundCall
from ...sharding.placements import ReduceOp
from .reductions import moments, wide

aten = torch.ops.aten
Args = tuple[object, ...]
Kwargs = dict[str, object]
Op = torch._ops.OpOverload
Optional = torch.Tensor | None


def _features(x: torch.Tensor, shape: object) -> list[int]:
    return list(range(x.dim() - len(cast("Sequence[int]", shape)), x.dim()))


def _stays_split(x: torch.Tensor, dims: Sequence[int]) -> bool:
    """Whether one of the dims is split, and two all-reduces of statistics are cheaper than gathering them."""
    if not isinstance(x, ShardedTensor) or x._layout.pending or not x.numel():
        return False
    axes = [axis for dim in dims for axis in x._layout.splits[dim]]
    if not axes:
        return False
    whole = x._layout
    for dim in dims:
        whole = whole.with_split(dim, ())
    waiting = whole.with_pending(dict.fromkeys(axes, ReduceOp.SUM))
    shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.shape))
    small = move_cost(waiting, whole, shape, x.dtype.itemsize)
    return 2 * small < move_cost(x._layout, whole, tuple(x.shape), x.dtype.itemsize)


@handler(aten.native_layer_norm.default, may_be_direct=True)
def _layer_norm(call: BoundCall) -> object:
    args = call.args
    x, shape, weight, bias, eps = cast("tuple[torch.Tensor, object, Optional, Optional, float]", args)
    dims = _features(x, shape)
    if not _stays_split(x, dims):
        return run_by_rule(call)
    value = wide(x)
    mean, variance = moments(value, dims, 0)
    scale = (variance + eps).rsqrt()
    out = (value - mean) * scale
    out = out if weight is None else out * weight
    out = out if bias is None else out + bias
    return out.to(x.dtype), mean, scale


@handler(aten._fused_rms_norm.default, may_be_direct=True)
def _rms_norm(call: BoundCall) -> object:
    args = call.args
    x, shape, weight, eps = cast("tuple[torch.Tensor, object, Optional, float | None]", args)
    dims = _features(x, shape)
    if not _stays_split(x, dims):
        return run_by_rule(call)
    value = wide(x)
    squares = aten.sum.dim_IntList(value * value, dims, True) / math.prod(x.shape[dim] for dim in dims)
    scale = (squares + (torch.finfo(x.dtype).eps if eps is None else eps)).rsqrt()
    out = value * scale
    return (out if weight is None else out * weight).to(x.dtype), scale


@handler(aten.native_layer_norm_backward.default, may_be_direct=True)
def _layer_norm_backward(call: BoundCall) -> object:
    args = call.args
    grad, x, shape, mean, scale, weight, _, mask = cast(
        "tuple[torch.Tensor, torch.Tensor, object, torch.Tensor, torch.Tensor, Optional, Optional, Sequence[bool]]",
        args,
    )
    dims = _features(x, shape)
    if not _stays_split(x, dims):
        return run_by_rule(call)
    unit = (wide(x) - mean) * scale
    flow = wide(grad)
    scaled = flow if weight is None else flow * weight
    rest = scaled - _mean(scaled, dims) - unit * _mean(scaled * unit, dims)
    return _gradients(x, rest * scale, flow, unit, dims, mask)


@handler(aten._fused_rms_norm_backward.default, may_be_direct=True)
def _rms_norm_backward(call: BoundCall) -> object:
    args = call.args
    grad, x, shape, scale, weight, mask = cast(
        "tuple[torch.Tensor, torch.Tensor, object, torch.Tensor, Optional, Sequence[bool]]", args
    )
    dims = _features(x, shape)
    if not _stays_split(x, dims):
        return run_by_rule(call)
    unit = wide(x) * scale
    flow = wide(grad)
    scaled = flow if weight is None else flow * weight
    rest = scaled - unit * _mean(scaled * unit, dims)
    return _gradients(x, rest * scale, flow, unit, dims, mask)


def _mean(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return cast(torch.Tensor, aten.sum.dim_IntList(x, dims, True)) / math.prod(x.shape[dim] for dim in dims)


def _gradients(
    x: torch.Tensor,
    back: torch.Tensor,
    flow: torch.Tensor,
    unit: torch.Tensor,
    dims: Sequence[int],
    mask: Sequence[bool],
) -> tuple[Optional, ...]:
    """The gradients that the mask asks for: of the input, the scale and, where there is one, the shift."""
    ahead = list(range(dims[0]))

    def summed(value: torch.Tensor) -> torch.Tensor:
        return (cast(torch.Tensor, aten.sum.dim_IntList(value, ahead)) if ahead else value).to(x.dtype)

    scale = summed(flow * unit) if mask[1] else None
    shift = (summed(flow) if mask[2] else None,) if len(mask) > 2 else ()
    return back.to(x.dtype) if mask[0] else None, scale, *shift
