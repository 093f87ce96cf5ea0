"""Convolutions: batch and output channels may be split, input channels leave a pending sum, groups are independent.

The space that is convolved over is whole, but for dims of which devices read windows: these may be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch

from ..arguments import arranged, asked_for, position
from ..call import BoundCall
from ..dims import one_each
from ..factors import Dims, Factors
from ..registry import Region, Rule, rules

__all__ = ["convolution", "convolution_backward", "convolution_backward_here", "convolution_here"]

aten = torch.ops.aten


class _Convolution:
    """The factors of one convolution: g groups, each from i input channels to o output channels.

    `windowed`: the dims of space that may be split, counted from the first of space.
    """

    def __init__(self, call: BoundCall, windowed: AbstractSet[int] = frozenset()) -> None:
        x, weight = call.tensor("input").shape, call.tensor("weight").shape
        groups, transposed = call.integer("groups"), call.flag("transposed")
        space = len(weight) - 2
        inner, outer = (weight[0] // groups, weight[1]) if transposed else (weight[1], weight[0] // groups)
        self.batched = len(x) == len(weight)
        self.sizes = {"g": groups, "i": inner, "o": outer} | ({"n": x[0]} if self.batched else {})
        self.sizes |= {f"s{i}": x[i - space] for i in windowed}
        incoming, outgoing = _grouped(groups, "i"), _grouped(groups, "o")
        ahead = one_each(["n"] if self.batched else [])
        places = one_each(f"s{i}" if i in windowed else None for i in range(space))
        around = one_each([None] * space)
        self.input: Dims = (*ahead, incoming, *places)
        self.output: Dims = (*ahead, outgoing, *places)
        self.bias: Dims = (outgoing,)
        self.weight: Dims = (incoming, ("o",), *around) if transposed else (outgoing, ("i",), *around)
        # The channels inside a group are kept together: a part of each group is no convolution of its own.
        self.whole = frozenset({"i", "o"}) if groups > 1 else frozenset()


def _grouped(groups: int, channels: str) -> tuple[str, ...]:
    return ("g", channels) if groups > 1 else (channels,)


def convolution(call: BoundCall, windowed: AbstractSet[int] = frozenset()) -> Factors:
    """The factors of a convolution, of which some dims of space are read in windows."""
    conv = _Convolution(call, windowed)
    inputs = arranged(call, {"input": conv.input, "weight": conv.weight, "bias": conv.bias})
    bias = position(call, "bias")
    added = frozenset() if bias is None else frozenset({bias})
    return Factors(inputs, (conv.output,), conv.sizes, conv.whole, linear="each", added=added)


def convolution_backward(call: BoundCall, windowed: AbstractSet[int] = frozenset()) -> Factors:
    """The factors of its gradients; those of weight and bias are sums over space."""
    conv = _Convolution(call, windowed)
    named = {"grad_output": conv.output, "input": conv.input, "weight": conv.weight}
    outputs, repeated = asked_for(call, (conv.input, conv.weight, conv.bias)), frozenset({(2, "i")})
    return Factors(arranged(call, named), outputs, conv.sizes, conv.whole, linear=0, repeated=repeated)


def convolution_here(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> torch.Tensor:
    """On one device; a convolution of no channels is its bias, where there is one."""
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    if x.numel() and weight.numel():
        return call.replaced(groups=_groups_here(call, outputs[0].shape)).result()
    out = x.new_zeros(outputs[0].shape)
    return out if bias is None or not out.numel() else out + bias.reshape([-1, *[1] * (weight.dim() - 2)])


def _groups_here(call: BoundCall, result: Sequence[int]) -> int:
    """How many groups a device has; the second dim of a weight is never split by groups."""
    if call.integer("groups") == 1:
        return 1
    weight = call.tensor("weight")
    channels = (result if call.flag("transposed") else call.tensor("input").shape)[1 - weight.dim()]
    return channels // weight.shape[1]


def convolution_backward_here(
    call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]
) -> tuple[torch.Tensor | None, ...]:
    """On one device; where it holds nothing of the input or the weight, only the bias has a gradient."""
    grad, x, weight = call.tensor("grad_output"), call.tensor("input"), call.tensor("weight")
    channel = grad.dim() + 1 - weight.dim()
    if grad.numel() and x.numel() and weight.numel():
        sizes = None if call.arg("bias_sizes") is None else [grad.shape[channel]]
        return call.replaced(bias_sizes=sizes, groups=_groups_here(call, grad.shape)).results()
    grads = (torch.zeros_like(x), torch.zeros_like(weight), grad.sum([d for d in range(grad.dim()) if d != channel]))
    return tuple(value if wanted else None for value, wanted in zip(grads, call.flags("output_mask"), strict=True))


rules |= {
    aten.convolution.default: Rule(convolution, local=convolution_here),
    aten.convolution_backward.default: Rule(convolution_backward, local=convolution_backward_here),
}
