"""Losses that are averaged: the mean over split samples is the sum of all divided by the count of all."""

from __future__ import annotations

from typing import cast

import torch

from ...engine.arguments import argument
from ...engine.dispatch import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor
from ...rules.losses import ELEMENTWISE, NONE, SUM
from .split_softmax import nll_loss_of_split_classes, nll_loss_of_split_classes_backward, stays_split

aten = torch.ops.aten

Args = tuple[object, ...]
Kwargs = dict[str, object]
Op = torch._ops.OpOverload
Optional = torch.Tensor | None

_MEAN = 1


def _reduction(func: Op, args: Args, kwargs: Kwargs) -> int:
    return cast(int, argument(func, args, kwargs, "reduction"))


def _with_reduction(func: Op, args: Args, kwargs: Kwargs, reduction: int) -> tuple[Args, Kwargs]:
    at = next(i for i, each in enumerate(func._schema.arguments) if each.name == "reduction")
    if at < len(args):
        return (*args[:at], reduction, *args[at + 1 :]), kwargs
    return args, {**kwargs, "reduction": reduction}


@handler(*(forward for forward, _ in ELEMENTWISE), aten.binary_cross_entropy_with_logits.default)
def _averaged(func: Op, args: Args, kwargs: Kwargs) -> object:
    reduction = _reduction(func, args, kwargs)
    if func is aten.binary_cross_entropy_with_logits.default:
        given = {name: argument(func, args, kwargs, name) for name in ("self", "target", "weight", "pos_weight")}
        each = _with_logits(*cast("tuple[torch.Tensor, torch.Tensor, Optional, Optional]", tuple(given.values())))
    else:
        each = cast(torch.Tensor, run_by_rule(func, *_with_reduction(func, args, kwargs, NONE)))
    return each if reduction == NONE else each.mean() if reduction == _MEAN else each.sum()


def _with_logits(x: torch.Tensor, target: torch.Tensor, weight: Optional, pos_weight: Optional) -> torch.Tensor:
    """-(w y log σ(x) + (1 - y) log(1 - σ(x))), without overflow."""
    below = cast(torch.Tensor, aten.log_sigmoid_forward(x)[0])
    share = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    loss = (1 - target) * x - share * below
    return loss if weight is None else loss * weight


@handler(*(backward for _, backward in ELEMENTWISE))
def _averaged_backward(func: Op, args: Args, kwargs: Kwargs) -> object:
    if _reduction(func, args, kwargs) == _MEAN:
        grad, *pair = cast("tuple[torch.Tensor, ...]", args[:3])
        count = torch.broadcast_shapes(*(x.shape for x in pair)).numel()
        args, kwargs = _with_reduction(func, (grad / max(1, count), *args[1:]), kwargs, SUM)
    return run_by_rule(func, args, kwargs)


@handler(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(func: Op, args: Args, kwargs: Kwargs) -> object:
    x, target, weight, reduction, ignored = cast("tuple[ShardedTensor, torch.Tensor, Optional, int, int]", args)
    if x.dim() > 1 and stays_split(x, 1):
        each, share = nll_loss_of_split_classes(func, args, x, target, weight, ignored)
        if reduction == NONE:
            return each, torch.zeros_like(share.sum())
        total, share = each.sum(), share.sum()
    elif reduction == _MEAN:
        total, share = cast("tuple[torch.Tensor, torch.Tensor]", run_by_rule(func, (*args[:3], SUM, ignored), kwargs))
    else:
        return run_by_rule(func, args, kwargs)
    return total / share if reduction == _MEAN else total, share


@handler(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_loss_backward(func: Op, args: Args, kwargs: Kwargs) -> object:
    grad, x, target, weight, reduction, ignored, share = cast(
        "tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, int, int, torch.Tensor]", args
    )
    if reduction == _MEAN:
        grad, reduction = grad / share, SUM
    args = (grad, x, target, weight, reduction, ignored, share)
    if isinstance(x, ShardedTensor) and x.dim() > 1 and stays_split(x, 1):
        return nll_loss_of_split_classes_backward(func, args, grad, x, target, weight, ignored)
    return run_by_rule(func, args, kwargs)


@handler(aten.log_sigmoid_forward.default)
def _log_sigmoid(func: Op, args: Args, kwargs: Kwargs) -> object:
    """The result, and what its gradient is computed from: on CPUs of the input's size, on GPUs nothing."""
    x = cast(torch.Tensor, args[0])
    if not x.is_floating_point():
        return run_by_rule(func, args, kwargs)  # torch refuses it
    buffer = (-x.abs()).exp()
    return x.clamp(max=0) - buffer.log1p(), buffer


@handler(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(func: Op, args: Args, kwargs: Kwargs) -> object:
    grad, x, _ = cast("tuple[torch.Tensor, ...]", args)
    return grad * (-x).sigmoid()
