"""Batch norm over a split batch: the statistics are those of the whole batch, from small all-reduces."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.movement import from_plain
from ...engine.moves.resolving import resolve
from ...engine.sharded import ShardedTensor, as_sharded, sharded
from ...engine.strides.restriding import as_op_gives
from ...rules.call import BoundCall
from ...sharding.layout import Layout
from .reductions import SHORT_FLOATS, is_cut, moments, wide

aten = torch.ops.aten

Optional = torch.Tensor | None


def _across(x: torch.Tensor) -> list[int]:
    """The dims that a channel is normalized over."""
    return [d for d in range(x.dim()) if d != 1]


def _per_channel(value: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return value.reshape([1, -1, *[1] * (x.dim() - 2)])


def _whole(x: ShardedTensor, call: BoundCall) -> ShardedTensor:
    """A tensor with nothing pending, because it is used more than once."""
    return resolve(x, str(call)) if x._layout.pending else x


def _runs_whole(x: ShardedTensor, each: Sequence[torch.Tensor]) -> bool:
    """Whether the kernel gives what the formula does, in its layout: next to numbers for each channel that are replicated on its mesh."""
    replicated = Layout.replicated(x._layout.mesh, 1)
    if any(isinstance(value, ShardedTensor) and value._layout is not replicated for value in each):
        return False
    return memory_of(x._layout).runs_whole([x._layout])


def _kept_dtype(x: torch.Tensor, each: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype in which statistics are kept for the way back: on a CPU that of the numbers for each channel, elsewhere a wide one."""
    if x.is_cpu:
        return each[0].dtype if each else x.dtype
    return torch.float32 if x.dtype in SHORT_FLOATS else x.dtype


def _are_taken(x: torch.Tensor, each: Sequence[torch.Tensor]) -> bool:
    """Whether kernels take the dtypes of numbers for each channel: all that of the input, or all wide next to a short one."""
    kinds = {value.dtype for value in each}
    return kinds <= {x.dtype} or (kinds == {torch.float32} and x.dtype in SHORT_FLOATS)


@handler(aten.native_batch_norm.default)
def _batch_norm(call: BoundCall) -> object:
    call = _laid(call)
    return as_op_gives(call, _computed(call), whole=True)


def _laid(call: BoundCall) -> BoundCall:
    """The call with an input that lies on the mesh of its other tensors: a plain one counts as whole."""
    x = call.tensor("input")
    if isinstance(x, ShardedTensor):
        return call
    mesh = next(y.mesh for y in call.tensors if isinstance(y, ShardedTensor))
    return call.replaced(input=from_plain(x, Layout.replicated(mesh, x.dim()), brought_to=str(call)))


def _computed(call: BoundCall) -> object:
    x, weight, bias = sharded(call, "input"), call.optional("weight"), call.optional("bias")
    mean, variance = call.optional("running_mean"), call.optional("running_var")
    momentum, eps = call.number("momentum"), call.number("eps")
    each = [value for value in (weight, bias, mean, variance) if value is not None]
    if not x.is_floating_point() or x.dim() < 2 or any(value.shape != x.shape[1:2] for value in each):
        return run_by_rule(call)  # torch refuses it
    if not _are_taken(x, each):
        return run_by_rule(call)  # nor does it take these
    if not call.flag("training"):
        if _runs_whole(x, each):
            return run_by_rule(call)
        assert mean is not None
        assert variance is not None
        out = _normalized(x, mean, (variance + eps).rsqrt(), weight, bias)
        none = from_plain(torch.empty(0, dtype=mean.dtype), Layout.replicated(x.mesh, 1))
        return out, none, none
    x = _whole(x, call)
    across = _across(x)
    count = math.prod(x.shape[d] for d in across)
    own_mean, own_variance = (_whole(aten.squeeze.dims(m, across), call) for m in moments(wide(x), across, 0))
    if mean is not None:
        mean.copy_((1 - momentum) * mean + momentum * own_mean)
    if variance is not None:
        variance.copy_((1 - momentum) * variance + momentum * own_variance * (count / max(1, count - 1)))
    kept = _kept_dtype(x, each)
    scales = [value for value in (weight, bias) if value is not None]
    if kept is _kept_dtype(x, scales) and _runs_whole(x, scales) and not is_cut(x, frozenset(across)):
        return run_by_rule(call.replaced(input=x, running_mean=None, running_var=None))
    invstd = (own_variance + eps).rsqrt()
    return _normalized(x, own_mean, invstd, weight, bias), own_mean.to(kept), invstd.to(kept)


def _normalized(
    x: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: Optional, bias: Optional
) -> torch.Tensor:
    out = (wide(x) - _per_channel(mean, x)) * _per_channel(invstd if weight is None else invstd * weight, x)
    if bias is not None:
        out = out + _per_channel(bias, x)
    return out if out.dtype is x.dtype else out.to(x.dtype)


@handler(aten.native_batch_norm_backward.default)
def _batch_norm_backward(call: BoundCall) -> object:
    grad, x, weight = call.tensor("grad_out"), call.tensor("input"), call.optional("weight")
    mean, invstd, mask = call.optional("save_mean"), call.optional("save_invstd"), call.flags("output_mask")
    if not call.flag("train"):
        # Nothing was saved, and what stands for it has no elements. The kernel of GPUs wants it.
        mean, variance = call.tensor("running_mean"), call.tensor("running_var")
        return run_by_rule(call.replaced(save_mean=mean, save_invstd=(variance + call.number("eps")).rsqrt()))
    x = _whole(x, call) if isinstance(x, ShardedTensor) else x
    if not isinstance(x, ShardedTensor) or not is_cut(x, frozenset(_across(x))):
        return run_by_rule(call.replaced(input=x))
    assert mean is not None
    assert invstd is not None
    across = _across(x)
    count = math.prod(x.shape[d] for d in across)
    flow = wide(grad)
    unit = (wide(x) - _per_channel(mean, x)) * _per_channel(invstd, x)
    sums = torch.stack([aten.sum.dim_IntList(flow, across), aten.sum.dim_IntList(flow * unit, across)])
    shift, scale = _whole(as_sharded(sums), call).unbind(0)
    back = None
    if mask[0]:
        rest = flow - _per_channel(shift, x) / count - unit * (_per_channel(scale, x) / count)
        back = (rest * _per_channel(invstd if weight is None else invstd * weight, x)).to(x.dtype)
    return back, scale if mask[1] else None, shift if mask[2] else None


_STATISTICS = ("input", "weight", "bias", "running_mean", "running_var")


def _native(call: BoundCall, training: bool, momentum: str = "momentum", eps: str = "eps") -> tuple[torch.Tensor, ...]:
    """The same by the op that others are forms of; running statistics that an op does not have are none."""
    given = *(call.arg(name) for name in _STATISTICS), training, call.number(momentum), call.number(eps)
    results = _batch_norm(BoundCall(aten.native_batch_norm.default, given))
    assert isinstance(results, tuple)
    return results


def _with_reserve(call: BoundCall, results: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Results, and memory that some kernels reserve for the way back, which stays empty."""
    x = sharded(_laid(call), "input")
    nothing = torch.empty(0, dtype=torch.uint8, device=x.device)
    return *results, from_plain(nothing, Layout.replicated(x.mesh, 1))


@handler(aten.cudnn_batch_norm.default)
def _cudnn_batch_norm(call: BoundCall) -> object:
    """What torch calls on GPUs."""
    return _with_reserve(call, _native(call, call.flag("training"), "exponential_average_factor", "epsilon"))


@handler(aten.cudnn_batch_norm_backward.default)
def _cudnn_batch_norm_backward(call: BoundCall) -> object:
    x, grad, weight, mean, variance, own_mean, invstd, eps, _ = call.args
    native = (grad, x, weight, mean, variance, own_mean, invstd, True, eps, [True, True, True])
    return _batch_norm_backward(BoundCall(aten.native_batch_norm_backward.default, native))


@handler(aten._native_batch_norm_legit.default, aten._native_batch_norm_legit.no_stats)
def _legit(call: BoundCall) -> object:
    """The same op, which says that it writes to the running statistics, or has none."""
    return _native(call, call.flag("training"))


@handler(aten._native_batch_norm_legit_no_training.default)
def _not_training(call: BoundCall) -> object:
    """What compiled programs have for it."""
    return _native(call, training=False)


@handler(aten._batch_norm_with_update.default, aten._batch_norm_no_update.default)
def _with_update(call: BoundCall) -> object:
    return _with_reserve(call, _native(call, call.func is aten._batch_norm_with_update.default))


@handler(aten.batch_norm_backward.default)
def _backward_with_reserve(call: BoundCall) -> object:
    return _batch_norm_backward(BoundCall(aten.native_batch_norm_backward.default, call.args[:10], call.kwargs))
