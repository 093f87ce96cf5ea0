"""Common ops by torch's own functions: they reach the same kernels in half the time that calling an overload takes.

An overload called from Python is boxed by its schema; a function of torch has a parser of its own. Modes that watch torch's
functions do not see these calls: torch sets them aside while it runs an op of a subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ...rules.ops.matmul import linear_backward

__all__ = ["Call", "quick"]

aten = torch.ops.aten
Call = Callable[..., Any]
"""Gives what its op gives."""

_TO_COPY = aten._to_copy.default
_NO_KWARGS: Mapping[str, object] = MappingProxyType({})

_QUICK: dict[torch._ops.OpOverload, Call] = {
    aten.abs.default: torch.abs,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.amax.default: torch.amax,
    aten.baddbmm.default: torch.baddbmm,
    aten.bmm.default: torch.bmm,
    aten.clone.default: torch.clone,
    aten.cos.default: torch.cos,
    aten.detach.default: torch.Tensor.detach,
    aten.div.Tensor: torch.div,
    aten.embedding.default: torch.embedding,
    aten.eq.Scalar: torch.eq,
    aten.eq.Tensor: torch.eq,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.ge.Scalar: torch.ge,
    aten.gelu.default: torch._C._nn.gelu,
    aten.gt.Scalar: torch.gt,
    aten.le.Scalar: torch.le,
    aten.linear.default: torch._C._nn.linear,
    aten.linear_backward.default: linear_backward,
    aten.log.default: torch.log,
    aten.lt.Scalar: torch.lt,
    aten.mean.default: torch.mean,
    aten.mean.dim: torch.mean,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.native_layer_norm.default: torch.native_layer_norm,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.relu.default: torch.relu,
    aten.rsqrt.default: torch.rsqrt,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.silu.default: torch._C._nn.silu,
    aten.sin.default: torch.sin,
    aten.sqrt.default: torch.sqrt,
    aten.squeeze.dim: torch.squeeze,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: torch.Tensor.view,
    aten.where.self: torch.where,
    aten._log_softmax.default: torch._log_softmax,
    aten._softmax.default: torch._softmax,
    aten.add_.Tensor: torch.Tensor.add_,
    aten.addcdiv_.default: torch.Tensor.addcdiv_,
    aten.addcmul_.default: torch.Tensor.addcmul_,
    aten.copy_.default: torch.Tensor.copy_,
    aten.div_.Tensor: torch.Tensor.div_,
    aten.fill_.Scalar: torch.Tensor.fill_,
    aten.lerp_.Scalar: torch.Tensor.lerp_,
    aten.mul_.Tensor: torch.Tensor.mul_,
    aten.sub_.Tensor: torch.Tensor.sub_,
    aten.zero_.default: torch.Tensor.zero_,
}
"""Only where the function takes the arguments of the overload as they stand, and finds that overload by them."""


def quick(op: torch._ops.OpOverload, kwargs: Mapping[str, object] = _NO_KWARGS) -> Call:
    """The quickest way to call an op on plain tensors, with keywords of these names.

    >>> quick(torch.ops.aten.add.Tensor) is torch.add
    True
    """
    if op is _TO_COPY and "dtype" in kwargs and kwargs.keys() <= {"dtype", "device", "layout"}:
        return _converted
    return _QUICK.get(op, op)


def _converted(
    x: torch.Tensor, *, dtype: torch.dtype, device: torch.device | None = None, layout: torch.layout | None = None
) -> torch.Tensor:
    return x.to(device, dtype, copy=True)
