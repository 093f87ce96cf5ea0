"""Losses: elementwise ones, and those that pick a class, which need the classes whole.

Here a loss is not yet averaged: a sum over split samples is a pending sum. `weft.handlers.split_dims.losses` says means by sums.
"""

from __future__ import annotations

import torch

from ...sharding.placements import ReduceOp
from ..arguments import arranged
from ..bounds import Bound
from ..call import BoundCall
from ..dims import one_each
from ..factors import Dims, Factors
from ..registry import Rule, rules
from .pointwise import broadcast_dims

__all__ = ["ELEMENTWISE", "NONE", "SUM", "has_targets"]

aten = torch.ops.aten

NONE, SUM = 0, 2
"""torch's numbers for reductions."""

ELEMENTWISE = (
    (aten.mse_loss.default, aten.mse_loss_backward.default),
    (aten.smooth_l1_loss.default, aten.smooth_l1_loss_backward.default),
    (aten.huber_loss.default, aten.huber_loss_backward.default),
    (aten.soft_margin_loss.default, aten.soft_margin_loss_backward.default),
    (aten.binary_cross_entropy.default, aten.binary_cross_entropy_backward.default),
)
"""Losses of pairs of elements, with their gradients."""


def _is_summed(call: BoundCall) -> bool:
    """Whether the losses are summed, or left as they are."""
    return call.integer("reduction") in (NONE, SUM)


def _elementwise(call: BoundCall) -> Factors | None:
    """A loss of each pair; a sum over all of them leaves out every dim."""
    if not _is_summed(call):
        return None
    inputs, output, sizes = broadcast_dims(tuple(x.shape for x in call.tensors))
    return Factors(inputs, (output if call.integer("reduction") == NONE else (),), sizes)


def _elementwise_backward(call: BoundCall) -> Factors | None:
    if not _is_summed(call):
        return None
    inputs, output, sizes = broadcast_dims(tuple(x.shape for x in call.tensors))
    return Factors(inputs, (output,), sizes, linear=0)


for _forward, _backward in ELEMENTWISE:
    rules[_forward] = Rule(_elementwise)
    rules[_backward] = Rule(_elementwise_backward)


class _Classes:
    """The factors of a loss of samples that each pick one class: (n, c, …) beside (n, …), or (c) beside one target."""

    def __init__(self, call: BoundCall) -> None:
        shape = call.tensor("self").shape
        samples = ["n"] if len(shape) > 1 else []
        rest = [f"s{i}" for i in range(len(shape) - 2)]
        names = [*samples, "c", *rest]
        self.sizes = dict(zip(names, shape, strict=True))
        self.all, self.one, self.classes = one_each(names), one_each([*samples, *rest]), one_each(["c"])
        # The target of one sample may be a number, or one in a dim of its own.
        targets = self.one if samples else one_each(["t"] * call.tensor("target").ndim)
        self.sizes |= {"t": 1} if targets and not samples else {}
        self.whole = frozenset({"c", "t"} & self.sizes.keys())
        self.named: dict[str, Dims] = {
            "self": self.all,
            "target": targets,
            "weight": self.classes,
            "total_weight": (),
        }


def has_targets(call: BoundCall) -> bool:
    """Whether there is a target for each place of an image: one is not that of several, which torch's account of it takes."""
    shape = call.tensor("self").shape
    return len(shape) < 4 or call.tensor("target").shape == (shape[0], *shape[2:])


def _nll_loss(call: BoundCall) -> Factors | None:
    if not _is_summed(call) or not has_targets(call):
        return None
    classes = _Classes(call)
    summed = call.integer("reduction") == SUM
    outputs: tuple[Dims, ...] = (() if summed else classes.one, ())
    repeated = frozenset((1, name) for name in classes.sizes if name == "c" or not summed)
    return Factors(arranged(call, classes.named), outputs, classes.sizes, classes.whole, repeated=repeated)


def _nll_loss_backward(call: BoundCall) -> Factors | None:
    if not _is_summed(call):
        return None
    classes = _Classes(call)
    grad = classes.one if call.tensor("grad_output").ndim else ()
    inputs = arranged(call, {**classes.named, "grad_output": grad})
    return Factors(inputs, (classes.all,), classes.sizes, classes.whole, linear=0)


def _bounds(call: BoundCall) -> tuple[Bound, ...]:
    """Which classes there are; a device that has a part of the samples looks at their targets only."""
    x = call.tensor("self")
    classes = min(1, x.dim() - 1)
    words = "Target {index} is out of bounds."
    return (Bound(1, classes, x.shape[classes], ignored=call.integer("ignore_index"), words=words),)


for _op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
    rules[_op] = Rule(_nll_loss, of_nothing=ReduceOp.SUM, bounds=_bounds)
for _op in (aten.nll_loss_backward.default, aten.nll_loss2d_backward.default):
    rules[_op] = Rule(_nll_loss_backward, of_nothing=ReduceOp.SUM)
