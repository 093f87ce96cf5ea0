"""Convolutions: batch and output channels may be split, input channels leave a pending sum, groups are independent.

The space that is convolved over is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .arguments import arranged, one_each, position
from .factors import Dims, Factors
from .registry import Call, Rule, Spec, rules

aten = torch.ops.aten


class _Convolution:
    """The factors of one convolution: g groups, each from i input channels to o output channels."""

    def __init__(self, call: Call) -> None:
        x, weight = cast(Spec, call.arg("input")).shape, cast(Spec, call.arg("weight")).shape
        groups = cast(int, call.arg("groups"))
        space = len(weight) - 2
        inner, outer = (weight[0] // groups, weight[1]) if call.arg("transposed") else (weight[1], weight[0] // groups)
        self.batched = len(x) == len(weight)
        self.sizes = {"g": groups, "i": inner, "o": outer} | ({"n": x[0]} if self.batched else {})
        incoming, outgoing = _grouped(groups, "i"), _grouped(groups, "o")
        ahead = one_each(["n"] if self.batched else [])
        around = one_each([None] * space)
        self.input: Dims = (*ahead, incoming, *around)
        self.output: Dims = (*ahead, outgoing, *around)
        self.bias: Dims = (outgoing,)
        self.weight: Dims = (incoming, ("o",), *around) if call.arg("transposed") else (outgoing, ("i",), *around)
        # The channels inside a group are kept together: a part of each group is no convolution of its own.
        self.whole = frozenset({"i", "o"}) if groups > 1 else frozenset()


def _grouped(groups: int, channels: str) -> tuple[str, ...]:
    return ("g", channels) if groups > 1 else (channels,)


def _convolution(call: Call) -> Factors:
    conv = _Convolution(call)
    inputs = arranged(call, {"input": conv.input, "weight": conv.weight, "bias": conv.bias})
    bias = position(call, "bias")
    added = frozenset() if bias is None else frozenset({bias})
    return Factors(inputs, (conv.output,), conv.sizes, conv.whole, linear="each", added=added)


def _convolution_backward(call: Call) -> Factors:
    conv = _Convolution(call)
    named = {"grad_output": conv.output, "input": conv.input, "weight": conv.weight}
    mask = cast("Sequence[bool]", call.arg("output_mask"))
    grads = (conv.input, conv.weight, conv.bias)
    outputs = tuple(dims if wanted else None for dims, wanted in zip(grads, mask, strict=True))
    repeated = frozenset({(2, "i")})
    return Factors(arranged(call, named), outputs, conv.sizes, conv.whole, linear=0, repeated=repeated)


def _local_groups(
    call: Call, local: Sequence[tuple[int, ...]], out: Sequence[tuple[int, ...]]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The groups, and the size of the bias, on one device; the second dim of a weight is never split by groups."""
    names = [argument.name for argument in call.func._schema.arguments]
    args = list(call.args)
    weight = cast(Spec, call.arg("weight")).shape
    channels = -len(weight) + 1
    grad = call.arg("grad_output")
    result = grad.shape if isinstance(grad, Spec) else out[0]
    transposed = bool(call.arg("transposed"))
    groups = cast(int, call.arg("groups"))
    if groups > 1:
        side = result if transposed else cast(Spec, call.arg("input")).shape
        groups = args[names.index("groups")] = side[channels] // weight[1]
    if "bias_sizes" in names and args[names.index("bias_sizes")] is not None:
        args[names.index("bias_sizes")] = [result[channels]]
    return tuple(args), call.kwargs


rules |= {
    aten.convolution.default: Rule(_convolution, _local_groups, of_nothing=ReduceOp.SUM),
    aten.convolution_backward.default: Rule(_convolution_backward, _local_groups, of_nothing=ReduceOp.SUM),
}
