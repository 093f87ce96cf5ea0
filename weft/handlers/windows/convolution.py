"""Convolutions of split space: devices exchange the borders that the kernel reaches over, and nothing else moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor, wrap
from ...planning.windows import Reach
from ...rules.call import BoundCall
from ...rules.convolution import convolution, convolution_backward, convolution_backward_here, convolution_here
from ...rules.registry import Region
from ...runtime.holding import holding
from .windowing import Look, Reaches, Windowed, windowed

__all__ = ["cropped", "hollow", "reached", "unpadded"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]
Regions = Sequence[Region]


def _reaches(weight: torch.Tensor, stride: object, padding: object, dilation: object) -> list[Reach]:
    kernel = weight.shape[2:]
    return [
        Reach(size, *(_entry(values, i) for values in (stride, padding, dilation))) for i, size in enumerate(kernel)
    ]


def _entry(values: object, dim: int) -> int:
    """The entry of a dim; torch lets one stand for all."""
    given = cast("Sequence[int]", values)
    return int(given[dim if len(given) > 1 else 0])


def _is_taken(x: torch.Tensor, weight: torch.Tensor, *sides: object) -> bool:
    """Whether torch may take such a convolution; why not, it says itself."""
    return x.dim() == weight.dim() > 2 and all(min(cast("Sequence[int]", values)) > 0 for values in sides)


def unpadded(padding: object, reaches: Reaches, rank: int) -> list[int]:
    """The padding of space, without that of dims of which devices read windows: these have it already."""
    given = cast("Sequence[int]", padding)
    first = rank - len(given)
    return [0 if first + i in reaches else int(p) for i, p in enumerate(given)]


def reached(reaches: Reaches, own: Region, results: Region) -> tuple[dict[int, int], list[int]]:
    """Where what the results that a device's own part went into were made of begins, and its shape."""
    first: dict[int, int] = {}
    shape = list(own.shape)
    for dim, reach in reaches.items():
        start, stop = reach.reads(*reach.reached(*own.box[dim], results.whole[dim]))
        first[dim], shape[dim] = start, stop - start
    return first, shape


def cropped(x: torch.Tensor, own: Region, first: dict[int, int]) -> torch.Tensor:
    """A device's own part of what was computed from some index of each dim on; zeros where nothing was."""
    sides: list[int] = []
    for dim in reversed(range(x.dim())):
        low, high = own.box[dim]
        start = first.get(dim, low)
        sides += [start - low, high - start - x.shape[dim]]
    return cast(torch.Tensor, aten.constant_pad_nd.default(x, sides)) if any(sides) else x


@handler(aten.convolution.default, may_be_direct=True)
def _convolution(call: BoundCall) -> object:
    args = call.args
    x, weight = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    stride, padding, dilation, transposed = args[3:7]
    if min(cast("Sequence[int]", padding), default=0) < 0:
        raise RuntimeError("negative padding is not supported")
    if not x.numel() and all(x.shape[:2]):
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {list(x.shape)}"
        )
    if not _is_taken(x, weight, stride, dilation):
        return run_by_rule(call)
    reaches = _reaches(weight, stride, padding, dilation)

    results = _spread(x, weight, reaches, args) if transposed else _result(x, weight, reaches)
    found = windowed(call, convolution, reaches, [Look(0, results, back=bool(transposed))])
    if found is None or call.kwargs:
        return run_by_rule(call)
    plan, call = found
    if plan.unified:
        return plan.labeled(call)
    (look,) = plan.windows
    x = plan.exchanged(look, plan.brought(call, 0) if transposed else cast(ShardedTensor, call.tensors[0]))
    rest = [plan.brought(call, i) for i in range(1, len(plan.choice.inputs))]
    return plan.everywhere(call, [x, *rest], partial(_transposed if transposed else _convolved, plan.reaches))


def _convolved(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> torch.Tensor:
    padding = unpadded(call.integers("padding"), reaches, len(made[0].box))
    return convolution_here(call.replaced(padding=padding), given, made)


def _transposed(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> torch.Tensor:
    """What the inputs that reach into a device's own part give there; where none does, only the bias."""
    args = call.args
    x, weight, bias = cast("tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]", args[:3])
    rank = x.dim()
    first, _ = reached(reaches, made[0], given[0])
    if x.numel() and weight.numel():
        sides = unpadded(args[4], reaches, rank), args[5], args[6], unpadded(args[7], reaches, rank)
        out = convolution_here(BoundCall(call.func, (x, weight, None, args[3], *sides, args[8])), given, made)
        out = cropped(out, made[0], first)
    else:
        out = torch.zeros(made[0].shape, dtype=x.dtype, device=x.device)
    return out if bias is None else out + bias.reshape([-1, *[1] * (weight.dim() - 2)])


def _spread(x: torch.Tensor, weight: torch.Tensor, reaches: Sequence[Reach], args: Args) -> tuple[int, ...]:
    """The shape of a transposed convolution."""
    space, groups = len(reaches), cast(int, args[8])
    sizes = [
        (size - 1) * reach.stride - 2 * reach.padding + reach.extent + _entry(args[7], i)
        for i, (size, reach) in enumerate(zip(x.shape[-space:], reaches, strict=True))
    ]
    return (*x.shape[: -space - 1], weight.shape[1] * groups, *sizes)


def _result(x: torch.Tensor, weight: torch.Tensor, reaches: Sequence[Reach]) -> tuple[int, ...]:
    """The shape of a convolution."""
    space = len(reaches)
    sizes = [
        (size + 2 * reach.padding - reach.extent) // reach.stride + 1
        for size, reach in zip(x.shape[-space:], reaches, strict=True)
    ]
    return (*x.shape[: -space - 1], weight.shape[0], *sizes)


@handler(aten.convolution_backward.default, may_be_direct=True)
def _convolution_backward(call: BoundCall) -> object:
    args = call.args
    grad, x, weight = cast("tuple[torch.Tensor, torch.Tensor, torch.Tensor]", args[:3])
    stride, padding, dilation, transposed = args[4:8]
    reaches, mask = _reaches(weight, stride, padding, dilation), cast("Sequence[bool]", args[10])
    looks = [Look(0, tuple(x.shape), back=not transposed)] if mask[0] or transposed else []
    looks += [Look(1, tuple(grad.shape))] if any(mask[1:]) and not transposed else []
    found = windowed(call, convolution_backward, reaches, looks)
    if found is None or call.kwargs:
        return run_by_rule(call)
    plan, call = found
    if plan.unified:
        return plan.labeled(call)
    return (_gradients_of_transposed if transposed else _gradients)(plan, call, mask)


def _gradients_of_transposed(plan: Windowed, call: BoundCall, mask: Sequence[bool]) -> tuple[object, ...]:
    """Those of input and weight from windows of what each part of the input went to; that of the bias from all of it."""
    (look,) = plan.windows
    grad = cast(ShardedTensor, call.tensors[0])
    back: object = None
    scale: object = None
    if mask[0] or mask[1]:
        laid = [plan.exchanged(look, grad), plan.brought(call, 1), plan.brought(call, 2)]
        only = call.replaced(output_mask=[*mask[:2], False])
        back, scale, _ = cast(Args, plan.everywhere(only, laid, partial(_weight_gradient, plan.reaches)))
    if not mask[2]:
        return back, scale, None
    channel = grad.dim() - call.tensor("weight").dim() + 1
    others = [d for d in range(grad.dim()) if d != channel]
    return back, scale, aten.sum.dim_IntList(plan.brought(call, 0), others)


def _gradients(plan: Windowed, call: BoundCall, mask: Sequence[bool]) -> tuple[object, ...]:
    """That of the input from windows of the results that each part went into; those of the weight from each part."""
    grad = plan.brought(call, 0)
    around = {
        look: plan.exchanged(look, grad if look.back else cast(ShardedTensor, call.tensors[1])) for look in plan.windows
    }
    weight = plan.brought(call, 2)
    result: list[object] = [None, None, None]
    for look, window in around.items():
        if look.back:
            only = call.replaced(output_mask=[True, False, False])
            laid = [window, hollow(plan, call), weight]
            made = plan.everywhere(only, laid, partial(_input_gradient, plan.reaches))
        else:
            only = call.replaced(output_mask=[False, *mask[1:]])
            laid = [grad, window, weight]
            made = plan.everywhere(only, laid, partial(_weight_gradient, plan.reaches))
        result = [new if old is None else old for old, new in zip(result, cast(Args, made), strict=True)]
    return tuple(result)


def hollow(plan: Windowed, call: BoundCall) -> ShardedTensor:
    """The input where only its shape counts."""
    x, layout = call.tensors[1], plan.choice.inputs[1]
    nothing = torch.empty(0, dtype=x.dtype, device=x.device)
    return wrap((nothing,) * holding(layout).count, layout, x.shape, dtype=x.dtype)


def _input_gradient(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> Args:
    args = call.args
    grad, _, weight = cast("tuple[torch.Tensor, ...]", args[:3])
    first, shape = reached(reaches, made[0], given[0])
    if not grad.numel() or not weight.numel() or 0 in shape:
        return torch.zeros(made[0].shape, dtype=grad.dtype, device=grad.device), None, None
    x = torch.empty(shape, dtype=grad.dtype, device=grad.device)
    here = (grad, x, weight, *args[3:5], unpadded(args[5], reaches, grad.dim()), *args[6:])
    back = cast("tuple[torch.Tensor, ...]", convolution_backward_here(BoundCall(call.func, here), given, made))[0]
    return cropped(back, made[0], first), None, None


def _weight_gradient(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> Args:
    args = call.args
    grad = cast(torch.Tensor, args[0])
    padding, beyond = (unpadded(args[i], reaches, grad.dim()) for i in (5, 8))
    here = (*args[:5], padding, *args[6:8], beyond, *args[9:])
    return convolution_backward_here(BoundCall(call.func, here), given, made)
