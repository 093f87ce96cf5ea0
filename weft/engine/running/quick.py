"""Common ops by torch's own functions: they reach the same kernels in half the time that calling an overload takes.

An overload called from Python is boxed by its schema; a function of torch has a parser of its own. Modes that watch torch's
functions do not see these calls: torch sets them aside while it runs an op of a subclass.

Of a number beside a tensor torch makes a tensor in every call, which takes longer than a small op. Here it is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from ...caches import cached
from ...rules.call import Args, Op
from ...rules.ops.matmul import linear_backward, matmul_backward
from ..sharded import ShardedTensor

__all__ = ["Call", "as_taken", "converting", "quick", "takes_number"]

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
    aten.matmul.default: torch.matmul,
    aten.matmul_backward.default: matmul_backward,
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

_NUMBERED = frozenset(getattr(aten, name).Tensor for op in ("add", "div", "mul", "sub") for name in (op, f"{op}_"))
_COMPUTED_IN = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
"""Dtypes in which ops compute: of others they take the number as it stands."""
_EXACT = 1 << 53
"""Whole numbers below are floats, too."""
_modes = torch._C._len_torch_dispatch_stack


def quick(op: torch._ops.OpOverload, kwargs: Mapping[str, object] = _NO_KWARGS) -> Call:
    """The quickest way to call an op on plain tensors, with these keywords or others beside which plans are the same.

    >>> quick(torch.ops.aten.add.Tensor) is torch.add
    True
    """
    convert = converting(op, kwargs)
    return _QUICK.get(op, op) if convert is None else lambda x, **_: convert(x)


def converting(op: torch._ops.OpOverload, kwargs: Mapping[str, object]) -> Call | None:
    """What makes another dtype of a tensor, where a call with these keywords does just that: it is called without them."""
    dtype, device = kwargs.get("dtype"), kwargs.get("device")
    if op is not _TO_COPY or dtype is None or not kwargs.keys() <= {"dtype", "device", "layout"}:
        return None
    return lambda x: x.to(device, dtype, copy=True)


def takes_number(op: Op, args: Args) -> bool:
    """Whether a call without keywords has a usual number in the place of a tensor, which may be one without dims as well.

    That has no say in the dtype of the result beside a tensor that has dims and is not of whole numbers.
    """
    if op not in _NUMBERED or len(args) != 2:
        return False
    x, number = args
    if not isinstance(x, ShardedTensor) or not x.dim() or not (x.dtype.is_floating_point or x.dtype.is_complex):
        return False
    if type(number) is int:
        return 0 < abs(number) < _EXACT
    return type(number) is float and 0 < abs(number) < torch.inf


def as_taken(number: float, beside: torch.Tensor) -> float | torch.Tensor:
    """A number as an op takes it soonest; as it stands where somebody looks on, or records.

    >>> as_taken(2.0, torch.ones(3))
    tensor(2.)
    """
    if type(beside) is not torch.Tensor or _modes():
        return number
    return _held(number, beside.dtype)


@cached(1024)
def _held(number: float, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        exact = torch.scalar_tensor(number, dtype=torch.float64, device="cpu")
        return exact.to(dtype) if dtype in _COMPUTED_IN else exact
