"""Softmax and the normalizations: what they normalize over is whole, everything else may be split.

The gradients of scales and shifts are sums over the rest, so a split batch leaves them pending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .arguments import arranged, one_each
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Rule, rules

aten = torch.ops.aten


def _softmax(linear: bool) -> Rule:
    def factors(call: BoundCall) -> Factors:
        spec = call.tensors[0]
        dims = one_each(f"d{i}" for i in range(spec.ndim))
        sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
        whole = frozenset({f"d{cast(int, call.arg('dim')) % spec.ndim}"} if spec.ndim else ())
        return Factors((dims,) * len(call.tensors), (dims,), sizes, whole, linear=0 if linear else "no")

    return Rule(factors)


rules |= {
    aten._softmax.default: _softmax(linear=False),
    aten._log_softmax.default: _softmax(linear=False),
    aten._safe_softmax.default: _softmax(linear=False),
    aten._softmax_backward_data.default: _softmax(linear=True),
    aten._log_softmax_backward_data.default: _softmax(linear=True),
    aten.glu_backward.default: _softmax(linear=True),
}


def _spec(call: BoundCall, name: str) -> torch.Tensor:
    return call.tensor(name)


class _Trailing:
    """The factors of a normalization over the last dims."""

    def __init__(self, call: BoundCall) -> None:
        shape = _spec(call, "input").shape
        lead = len(shape) - len(cast("Sequence[int]", call.arg("normalized_shape")))
        names = [f"d{i}" for i in range(len(shape))]
        self.sizes = dict(zip(names, shape, strict=True))
        self.whole = frozenset(names[lead:])
        self.all, self.scale = one_each(names), one_each(names[lead:])
        self.statistic = one_each([*names[:lead], *[None] * (len(shape) - lead)])


def _layer_norm(call: BoundCall) -> Factors:
    trailing = _Trailing(call)
    inputs = arranged(call, {"input": trailing.all, "weight": trailing.scale, "bias": trailing.scale})
    statistics = (trailing.statistic,) * (len(call.func._schema.returns) - 1)
    return Factors(inputs, (trailing.all, *statistics), trailing.sizes, trailing.whole)


def _layer_norm_backward(call: BoundCall) -> Factors:
    trailing = _Trailing(call)
    named: dict[str, Dims] = dict.fromkeys(("grad_out", "input"), trailing.all)
    named |= dict.fromkeys(("weight", "bias"), trailing.scale) | dict.fromkeys(("mean", "rstd"), trailing.statistic)
    grads = (trailing.all, trailing.scale, trailing.scale)
    return _gradients(call, arranged(call, named), grads, trailing.sizes, trailing.whole)


def _gradients(
    call: BoundCall, inputs: tuple[Dims, ...], grads: tuple[Dims, ...], sizes: dict[str, int], whole: frozenset[str]
) -> Factors:
    """A backward op: the gradients that its mask asks for, linear in the first input, sums over what they lack."""
    mask = cast("Sequence[bool]", call.arg("output_mask"))
    outputs = tuple(dims if wanted else None for dims, wanted in zip(grads, mask, strict=False))
    partial = frozenset(range(1, len(outputs)))
    return Factors(inputs, outputs, sizes, whole, linear=0, partial_outputs=partial)


rules |= {
    aten.native_layer_norm.default: Rule(_layer_norm, of_nothing=ReduceOp.SUM),
    aten.native_layer_norm_backward.default: Rule(_layer_norm_backward, of_nothing=ReduceOp.SUM),
    aten._fused_rms_norm.default: Rule(_layer_norm, of_nothing=ReduceOp.SUM),
    aten._fused_rms_norm_backward.default: Rule(_layer_norm_backward, of_nothing=ReduceOp.SUM),
}


class _Grouped:
    """The factors of a normalization over groups of channels: the channels are groups times what is in one."""

    def __init__(self, call: BoundCall) -> None:
        shape = _spec(call, "input").shape
        groups = call.integer("group")
        rest = [f"s{i}" for i in range(len(shape) - 2)]
        self.sizes = {"n": shape[0], "g": groups, "c": shape[1] // groups} | dict(zip(rest, shape[2:], strict=True))
        self.whole = frozenset({"c", *rest})
        self.all: Dims = (("n",), ("g", "c"), *one_each(rest))
        self.scale: Dims = (("g", "c"),)
        self.statistic = one_each(["n", "g"])


def _group_norm(call: BoundCall) -> Factors:
    grouped = _Grouped(call)
    inputs = arranged(call, {"input": grouped.all, "weight": grouped.scale, "bias": grouped.scale})
    return Factors(inputs, (grouped.all, grouped.statistic, grouped.statistic), grouped.sizes, grouped.whole)


def _group_norm_backward(call: BoundCall) -> Factors:
    grouped = _Grouped(call)
    named: dict[str, Dims] = dict.fromkeys(("grad_out", "input"), grouped.all) | {"weight": grouped.scale}
    named |= dict.fromkeys(("mean", "rstd"), grouped.statistic)
    grads = (grouped.all, grouped.scale, grouped.scale)
    return _gradients(call, arranged(call, named), grads, grouped.sizes, grouped.whole)


def _local_groups(
    call: BoundCall, local: Sequence[tuple[int, ...]], out: Sequence[tuple[int, ...]]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """N, C and the number of groups on one device."""
    shape, names = _spec(call, "input").shape, [argument.name for argument in call.func._schema.arguments]
    per_group = call.integer("C") // call.integer("group")
    values = {"N": shape[0], "C": shape[1], "HxW": math.prod(shape[2:]), "group": shape[1] // per_group}
    args = [values.get(name, value) for name, value in zip(names, call.args, strict=False)]
    return tuple(args), {name: values.get(name, value) for name, value in call.kwargs.items()}


rules |= {
    aten.native_group_norm.default: Rule(_group_norm, _local_groups, of_nothing=ReduceOp.SUM),
    aten.native_group_norm_backward.default: Rule(_group_norm_backward, _local_groups, of_nothing=ReduceOp.SUM),
}


class _Channels:
    """The factors of a normalization of each channel over everything else."""

    def __init__(self, call: BoundCall, *, fixed: bool) -> None:
        shape = _spec(call, "input").shape
        names = ["n", "c", *(f"s{i}" for i in range(len(shape) - 2))]
        self.sizes = dict(zip(names, shape, strict=True))
        # With statistics that are fixed, elements are normalized one by one; else only channels are independent.
        self.whole = frozenset() if fixed else frozenset(names) - {"c"}
        self.all, self.channel = one_each(names), one_each(["c"])


_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd")


def batch_norm_rule(*, backward: bool) -> Rule:
    """The rule of a batch norm: with the batch's own statistics it must be whole, with fixed ones it may be split."""

    def factors(call: BoundCall) -> Factors:
        training = bool(call.arg("train" if backward else "training"))
        channels = _Channels(call, fixed=not training)
        named: dict[str, Dims] = dict.fromkeys(("grad_out", "input"), channels.all)
        inputs = arranged(call, named | dict.fromkeys(_PER_CHANNEL, channels.channel))
        if backward:
            return _gradients(
                call, inputs, (channels.all, channels.channel, channels.channel), channels.sizes, channels.whole
            )
        saved: Dims = channels.channel if training else ((),)
        others = channels.sizes if not training else {name: 1 for name in channels.sizes if name != "c"}
        repeated = frozenset((k, name) for k in (1, 2) for name in others)
        return Factors(inputs, (channels.all, saved, saved), channels.sizes, channels.whole, repeated=repeated)

    return Rule(factors, of_nothing=ReduceOp.SUM)


rules |= {
    aten.native_batch_norm.default: batch_norm_rule(backward=False),
    aten.native_batch_norm_backward.default: batch_norm_rule(backward=True),
}
