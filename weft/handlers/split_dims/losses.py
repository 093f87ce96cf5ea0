"""Losses that are averaged: the mean over split samples is the sum of all divided by the count of all."""

from __future__ import annotations

import math
from typing import cast

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.op_plan import NOT_REPEATED, Repeat
from ...engine.running.repeating import repeat_by_rule
from ...engine.sharded import ShardedTensor
from ...engine.strides.restriding import as_op_gives
from ...rules.call import BoundCall, Known, Kwargs
from ...rules.ops.losses import ELEMENTWISE, NONE, SUM, has_targets
from .split_softmax import nll_loss_of_split_classes, nll_loss_of_split_classes_backward, stays_split

aten = torch.ops.aten

_MEAN = 1


@handler(*(forward for forward, _ in ELEMENTWISE), aten.binary_cross_entropy_with_logits.default)
def _averaged(call: BoundCall) -> object:
    if call.func is aten.soft_margin_loss.default:
        _refuse_wider(call.tensor("self"), call.tensor("target"))
    reduction = call.integer("reduction")
    has_logits = call.func is aten.binary_cross_entropy_with_logits.default
    each = _with_logits(call) if has_logits else run_by_rule(call.replaced(reduction=NONE))
    assert isinstance(each, torch.Tensor)
    return each if reduction == NONE else each.mean() if reduction == _MEAN else each.sum()


def _refuse_wider(x: torch.Tensor, target: torch.Tensor) -> None:
    """Raises where a target has more elements than torch makes room for; devices that have few of them would not tell."""
    met = torch.broadcast_shapes(x.shape, target.shape)
    if met != x.shape:
        raise RuntimeError(f"output with shape {list(x.shape)} doesn't match the broadcast shape {list(met)}")


def _with_logits(call: BoundCall) -> torch.Tensor:
    """-(w y log σ(x) + (1 - y) log(1 - σ(x))), without overflow."""
    x, target = call.tensor("self"), call.tensor("target")
    weight, pos_weight = call.optional("weight"), call.optional("pos_weight")
    if x.dtype is not target.dtype:  # refused by torch, if it is
        (1 - torch.empty(0, dtype=target.dtype)).mul_(torch.empty(0, dtype=x.dtype))
    share = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    loss: torch.Tensor = (1 - target) * x - share * aten.log_sigmoid_forward(x)[0]
    loss = loss if weight is None else loss * weight
    return loss.to(target.dtype)  # torch writes it over what it made of the target


@handler(*(backward for _, backward in ELEMENTWISE))
def _averaged_backward(call: BoundCall) -> object:
    if call.integer("reduction") == _MEAN:
        count = math.prod(torch.broadcast_shapes(call.tensor("self").shape, call.tensor("target").shape))
        call = call.replaced(grad_output=call.tensor("grad_output") / max(1, count), reduction=SUM)
    return run_by_rule(call)


def _has_bytes(call: BoundCall) -> bool:
    """Whether classes are said in bytes: the kernels of this loss take them, torch's accounts of it and other ops do not."""
    return call.func in _OF_BYTES and call.tensor("target").dtype is torch.uint8


_OF_BYTES = (aten.nll_loss_forward.default, aten.nll_loss_backward.default)


@handler(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(call: BoundCall) -> object:
    if _has_bytes(call):
        return call.replaced(target=call.tensor("target").long())()
    x, reduction = call.tensor("self"), call.integer("reduction")
    if isinstance(x, ShardedTensor) and has_targets(call) and x.dim() > 1 and stays_split(x, 1):
        each, share = nll_loss_of_split_classes(call)
        if reduction == NONE:
            return each, torch.zeros_like(share.sum())
        total, share = each.sum(), share.sum()
    elif reduction == _MEAN:
        of_sum = call.replaced(reduction=SUM)
        summed = run_by_rule(of_sum)
        assert isinstance(summed, tuple)
        total, share = summed
        call.repeat = _mean_again(repeat_by_rule(of_sum, summed))
    else:
        result = run_by_rule(call)
        call.repeat = repeat_by_rule(call, result)
        return result
    return total / share if reduction == _MEAN else total, share


_REDUCTION = 3
"""The position of the reduction among the arguments of `nll_loss`; in its gradient, one further."""


def _mean_again(summed_again: Repeat | None) -> Repeat | None:
    """What repeats a mean, by what repeats the sum."""
    if summed_again is None:
        return None

    def repeat(args: Known, kwargs: Kwargs) -> object:
        summed = summed_again((*args[:_REDUCTION], SUM, *args[_REDUCTION + 1 :]), kwargs)
        if summed is NOT_REPEATED:
            return summed
        total, share = cast("tuple[torch.Tensor, torch.Tensor]", summed)
        return total / share, share

    return repeat


def _mean_backward_again(of_sum: BoundCall, result: object) -> Repeat | None:
    """What repeats the gradient of a mean, by what repeats that of the sum."""
    summed_again, at = repeat_by_rule(of_sum, result), _REDUCTION + 1
    if summed_again is None:
        return None

    def repeat(args: Known, kwargs: Kwargs) -> object:
        return summed_again((args[0] / args[-1], *args[1:at], SUM, *args[at + 1 :]), kwargs)

    return repeat


@handler(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_loss_backward(call: BoundCall) -> object:
    if _has_bytes(call):
        return call.replaced(target=call.tensor("target").long())()
    x, of_sum = call.tensor("self"), call
    if call.integer("reduction") == _MEAN:
        share = call.tensor("total_weight")
        of_sum = call.replaced(grad_output=call.tensor("grad_output") / share, reduction=SUM)
    if isinstance(x, ShardedTensor) and x.dim() > 1 and stays_split(x, 1):
        return nll_loss_of_split_classes_backward(of_sum)
    result = run_by_rule(of_sum)
    call.repeat = repeat_by_rule(call, result) if of_sum is call else _mean_backward_again(of_sum, result)
    return result


@handler(aten.log_sigmoid_forward.default)
def _log_sigmoid(call: BoundCall) -> object:
    """The result, and what its gradient is computed from: on CPUs of the input's size, on GPUs nothing."""
    x = call.tensor("self")
    if not x.is_floating_point():
        return run_by_rule(call)  # torch refuses it
    buffer = (-x.abs()).exp()
    return as_op_gives(call, (x.clamp(max=0) - buffer.log1p(), buffer), whole=True)


@handler(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(call: BoundCall) -> object:
    return call.tensor("grad_output") * (-call.tensor("self")).sigmoid()
