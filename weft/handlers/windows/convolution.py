"""Convolutions of split space: devices exchange the borders that the kernel reaches over, and nothing else moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor, as_sharded, wrap
from ...planning.boxes.windows import Reach
from ...rules.call import Args, BoundCall
from ...rules.ops.convolution import convolution, convolution_backward, convolution_backward_here, convolution_here
from ...rules.registry import Region
from ...runtime.holding import holding
from .windowing import Look, Reaches, Windowed, windowed

__all__ = ["cropped", "hollow", "reached", "unpadded"]

aten = torch.ops.aten
Gradient = Callable[[Reaches, BoundCall, Sequence[Region], Sequence[Region]], Args]


def _reaches(call: BoundCall) -> list[Reach]:
    """How far each dim of space is looked around."""
    sides = [call.integers(name) for name in ("stride", "padding", "dilation")]
    kernel = call.tensor("weight").shape[2:]
    return [Reach(size, *(_entry(values, i) for values in sides)) for i, size in enumerate(kernel)]


def _entry(values: Sequence[int], dim: int) -> int:
    """The entry of a dim; torch lets one stand for all."""
    return values[dim if len(values) > 1 else 0]


def unpadded(padding: Sequence[int], reaches: Reaches, rank: int) -> list[int]:
    """The padding of space, without that of dims of which devices read windows: these have it already."""
    first = rank - len(padding)
    return [0 if first + i in reaches else int(p) for i, p in enumerate(padding)]


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
    return torch.constant_pad_nd(x, sides) if any(sides) else x


@handler(aten.convolution.default, may_be_direct=True)
def _convolution(call: BoundCall) -> object:
    x, weight, transposed = call.tensor("input"), call.tensor("weight"), call.flag("transposed")
    _refuse_wrong(call)
    if not x.dim() == weight.dim() > 2 or min(call.integers("dilation")) < 1:
        return run_by_rule(call)  # torch may refuse it, and says why
    reaches = _reaches(call)
    results = (_spread if transposed else _result)(call, reaches)
    found = windowed(call, convolution, reaches, [Look(0, results, back=transposed)])
    if found is None or call.kwargs:
        return run_by_rule(call)
    plan, call = found
    whole = plan.on_whole(call, range(0 if transposed else 1, len(call.tensors)))
    if whole is not None:
        return whole
    (look,) = plan.windows
    x = plan.exchanged(look, plan.brought(call, 0) if transposed else as_sharded(call.tensors[0]))
    rest = [plan.brought(call, i) for i in range(1, len(plan.choice.inputs))]
    return plan.everywhere(call, [x, *rest], partial(_transposed if transposed else _convolved, plan.reaches))


def _refuse_wrong(call: BoundCall) -> None:
    """Raises what torch's kernels do before they look at elements: its account without memory does not."""
    x, weight, groups = call.tensor("input"), call.tensor("weight"), call.integer("groups")
    for name in ("padding", "output_padding"):
        if min(call.integers(name), default=0) < 0:
            raise RuntimeError(f"negative {name} is not supported")
    if min(call.integers("stride"), default=1) < 1:
        raise RuntimeError("non-positive stride is not supported")
    if weight.dim() and groups > 0 and (weight.shape[0] < groups or weight.shape[0] % groups):
        wanted = f"at least {groups}" if weight.shape[0] < groups else f"divisible by {groups}"
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be {wanted} at dimension 0, but got weight of size {list(weight.shape)} instead"
        )
    if not x.numel() and all(x.shape[:2]):
        raise RuntimeError(
            f"Only zero batch or zero channel inputs are supported, but got input shape: {list(x.shape)}"
        )
    if x.numel():
        _refuse_empty_kernel(call)


def _refuse_empty_kernel(call: BoundCall) -> None:
    """Raises where kernels of convolutions give nothing, or reach beyond what they give; of no inputs torch asks neither."""
    weight, transposed = call.tensor("weight"), call.flag("transposed")
    if not all(weight.shape[1:] if transposed else weight.shape[2:]):
        raise RuntimeError(f"non-empty weight tensor expected, but got: {list(weight.shape)}")
    beyond, stride, dilation = (call.integers(name) for name in ("output_padding", "stride", "dilation"))
    spread = range(weight.dim() - 2) if transposed else ()
    if any(_entry(beyond, i) >= max(_entry(stride, i), _entry(dilation, i)) for i in spread):
        raise RuntimeError(
            f"output padding must be smaller than either stride or dilation, but got output_padding: {beyond} stride: {stride} dilation: {dilation}"
        )


def _convolved(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> torch.Tensor:
    padding = unpadded(call.integers("padding"), reaches, len(made[0].box))
    return convolution_here(call.replaced(padding=padding), given, made)


def _transposed(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> torch.Tensor:
    """What the inputs that reach into a device's own part give there; where none does, only the bias."""
    x, weight, bias = call.tensor("input"), call.tensor("weight"), call.optional("bias")
    if x.numel() and weight.numel():
        padding, beyond = (unpadded(call.integers(name), reaches, x.dim()) for name in ("padding", "output_padding"))
        out = convolution_here(call.replaced(bias=None, padding=padding, output_padding=beyond), given, made)
        out = cropped(out, made[0], reached(reaches, made[0], given[0])[0])
    else:
        out = torch.zeros(made[0].shape, dtype=x.dtype, device=x.device)
    return out if bias is None else out + bias.reshape([-1, *[1] * (weight.dim() - 2)])


def _spread(call: BoundCall, reaches: Sequence[Reach]) -> tuple[int, ...]:
    """The shape of a transposed convolution."""
    x, beyond, space = call.tensor("input"), call.integers("output_padding"), len(reaches)
    sizes = [
        (size - 1) * reach.stride - 2 * reach.padding + reach.extent + _entry(beyond, i)
        for i, (size, reach) in enumerate(zip(x.shape[-space:], reaches, strict=True))
    ]
    return (*x.shape[: -space - 1], call.tensor("weight").shape[1] * call.integer("groups"), *sizes)


def _result(call: BoundCall, reaches: Sequence[Reach]) -> tuple[int, ...]:
    """The shape of a convolution."""
    x, space = call.tensor("input"), len(reaches)
    sizes = [
        (size + 2 * reach.padding - reach.extent) // reach.stride + 1
        for size, reach in zip(x.shape[-space:], reaches, strict=True)
    ]
    return (*x.shape[: -space - 1], call.tensor("weight").shape[0], *sizes)


@handler(aten.convolution_backward.default, may_be_direct=True)
def _convolution_backward(call: BoundCall) -> object:
    grad, x, mask = call.tensor("grad_output"), call.tensor("input"), call.flags("output_mask")
    transposed = call.flag("transposed")
    looks = [Look(0, tuple(x.shape), back=not transposed)] if mask[0] or transposed else []
    looks += [Look(1, tuple(grad.shape))] if any(mask[1:]) and not transposed else []
    found = windowed(call, convolution_backward, _reaches(call), looks)
    if found is None or call.kwargs:
        return run_by_rule(call)
    plan, call = found
    if not any(mask[:2]):
        return None, None, _of_bias(call, as_sharded(grad))  # which reads no windows
    brings = ([0] if mask[2] else []) + ([1, 2] if any(mask[:2]) else []) if transposed else [0, 2]
    whole = plan.on_whole(call, brings)
    if whole is not None:
        return whole
    return (_gradients_of_transposed if transposed else _gradients)(plan, call, mask)


def _gradients_of_transposed(plan: Windowed, call: BoundCall, mask: Sequence[bool]) -> tuple[object, ...]:
    """Those of input and weight from windows of what each part of the input went to; that of the bias from all of it."""
    (look,) = plan.windows
    grad = as_sharded(call.tensors[0])
    back: object = None
    scale: object = None
    if mask[0] or mask[1]:
        laid = [plan.exchanged(look, grad), plan.brought(call, 1), plan.brought(call, 2)]
        only = call.replaced(output_mask=[*mask[:2], False])
        back, scale, _ = _everywhere(plan, only, laid, _weight_gradient)
    return back, scale, _of_bias(call, plan.brought(call, 0)) if mask[2] else None


def _of_bias(call: BoundCall, grad: ShardedTensor) -> object:
    channel = grad.dim() - call.tensor("weight").dim() + 1
    return aten.sum.dim_IntList(grad, [d for d in range(grad.dim()) if d != channel])


def _gradients(plan: Windowed, call: BoundCall, mask: Sequence[bool]) -> tuple[object, ...]:
    """That of the input from windows of the results that each part went into; those of the weight from each part."""
    grad = plan.brought(call, 0)
    around = {look: plan.exchanged(look, grad if look.back else as_sharded(call.tensors[1])) for look in plan.windows}
    weight = plan.brought(call, 2)
    result: list[object] = [None, None, None]
    for look, window in around.items():
        if look.back:
            only = call.replaced(output_mask=[True, False, False])
            laid = [window, hollow(plan, call), weight]
            made = _everywhere(plan, only, laid, _input_gradient)
        else:
            only = call.replaced(output_mask=[False, *mask[1:]])
            laid = [grad, window, weight]
            made = _everywhere(plan, only, laid, _weight_gradient)
        result = [new if old is None else old for old, new in zip(result, made, strict=True)]
    return tuple(result)


def _everywhere(plan: Windowed, call: BoundCall, laid: Sequence[ShardedTensor], local: Gradient) -> Args:
    """The three gradients, of which some are None."""
    made = plan.everywhere(call, laid, partial(local, plan.reaches))
    assert isinstance(made, tuple)
    return made


def hollow(plan: Windowed, call: BoundCall) -> ShardedTensor:
    """The input where only its shape counts."""
    x, layout = call.tensors[1], plan.choice.inputs[1]
    nothing = torch.empty(0, dtype=x.dtype, device=x.device)
    return wrap((nothing,) * holding(layout).count, layout, x.shape, dtype=x.dtype)


def _input_gradient(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> Args:
    grad = call.tensor("grad_output")
    first, shape = reached(reaches, made[0], given[0])
    if not grad.numel() or not call.tensor("weight").numel() or 0 in shape:
        return torch.zeros(made[0].shape, dtype=grad.dtype, device=grad.device), None, None
    x = torch.empty(shape, dtype=grad.dtype, device=grad.device)
    here = call.replaced(input=x, padding=unpadded(call.integers("padding"), reaches, grad.dim()))
    back = convolution_backward_here(here, given, made)[0]
    assert isinstance(back, torch.Tensor)
    return cropped(back, made[0], first), None, None


def _weight_gradient(reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> Args:
    rank = call.tensor("grad_output").dim()
    padding, beyond = (unpadded(call.integers(name), reaches, rank) for name in ("padding", "output_padding"))
    return convolution_backward_here(call.replaced(padding=padding, output_padding=beyond), given, made)
