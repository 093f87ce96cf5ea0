"""Pooling of split space: devices exchange what the windows at their borders reach over, and nothing else moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import as_sharded
from ...planning.boxes.windows import Reach
from ...rules.call import BoundCall, Op
from ...rules.ops.pooling import pooling
from ...rules.registry import Region
from ..split_dims.reductions import wide
from .convolution import cropped, hollow, reached, unpadded
from .windowing import Look, Reaches, windowed

aten = torch.ops.aten

_POOLS: dict[Op, int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
}
_GRADIENTS: dict[Op, int] = {
    aten.max_pool2d_with_indices_backward.default: 2,
    aten.max_pool3d_with_indices_backward.default: 3,
    aten.avg_pool2d_backward.default: 2,
    aten.avg_pool3d_backward.default: 3,
}
_SPACE = _POOLS | _GRADIENTS
"""How many dims each op pools over."""


@dataclass(frozen=True, slots=True)
class _Pool:
    """What a call says of its windows; only dims of space are counted."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    rounds_up: bool

    @staticmethod
    def of(call: BoundCall) -> _Pool:
        """The windows of a call; what is said once stands for all dims, and windows stand side by side unless said."""
        space = _SPACE[call.func]

        def values(name: str, default: Sequence[int]) -> tuple[int, ...]:
            found = call.integers(name) or list(default)
            return tuple(found * space if len(found) == 1 else found)

        kernel = values("kernel_size", ())
        stride, padding, dilation = values("stride", kernel), values("padding", [0]), values("dilation", [1])
        return _Pool(kernel, stride, padding, dilation, call.flag("ceil_mode"))

    @property
    def reaches(self) -> list[Reach]:
        """How far each dim is looked around."""
        return [Reach(*each) for each in zip(self.kernel, self.stride, self.padding, self.dilation, strict=True)]

    def results(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of what is pooled from a shape."""
        space = len(self.kernel)
        sizes = []
        for size, reach in zip(shape[-space:], self.reaches, strict=True):
            free = size + 2 * reach.padding - reach.extent
            count = (-(-free // reach.stride) if self.rounds_up else free // reach.stride) + 1
            # A window that would begin past the tensor and its padding on the left is left out.
            past = self.rounds_up and (count - 1) * reach.stride >= size + reach.padding
            sizes.append(count - past)
        return (*shape[:-space], *sizes)


def _positional(call: BoundCall) -> BoundCall:
    return BoundCall(call.func, tuple(call.arg(each.name) for each in call.func._schema.arguments))


@handler(*_POOLS, may_be_direct=True)
def _pool(call: BoundCall) -> object:
    if call.has("divisor_override") and call.optional_integer("divisor_override") == 0:
        raise RuntimeError("divisor must be not zero")  # devices that have no windows would not say so
    pool, space = _Pool.of(call), _SPACE[call.func]
    looks = [Look(0, pool.results(call.tensors[0].shape))]
    found = windowed(_positional(call), lambda each, dims: pooling(each, space, dims), pool.reaches, looks)
    if found is None or call.tensors[0].dtype in _UNPOOLED:
        return run_by_rule(call)
    plan, call = found
    whole = plan.on_whole(call, ())
    if whole is not None:
        return whole
    (look,) = plan.windows
    x = as_sharded(call.tensors[0])
    if "max" in call.name:
        least = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
        return plan.everywhere(call, [plan.exchanged(look, x, least)], partial(_maxima, pool, plan.reaches))
    return plan.everywhere(call, [plan.exchanged(look, x)], partial(_means, pool, plan.reaches))


_UNPOOLED = (torch.bool, torch.complex64, torch.complex128, torch.complex32)
"""Dtypes that kernels refuse: there is no least of them to put around a window."""


def _maxima(pool: _Pool, reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    """The largest of each window of a device, and where they stand in the whole."""
    x = call.tensor("self")
    if 0 in made[0].shape:
        nothing = torch.empty(made[0].shape, dtype=x.dtype, device=x.device)
        return nothing, nothing.to(torch.int64)
    padding = unpadded(pool.padding, reaches, x.dim())
    values, places = call.func(x, pool.kernel, pool.stride, padding, pool.dilation, pool.rounds_up)
    first = {dim: reach.reads(*made[0].box[dim])[0] for dim, reach in reaches.items()}
    return values, _renumbered(places, x.shape, given[0].whole, first, pool)


def _renumbered(
    places: torch.Tensor, shape: Sequence[int], whole: Sequence[int], first: dict[int, int], pool: _Pool
) -> torch.Tensor:
    """Places in a window that begins somewhere, as places in the whole."""
    rank, space = len(shape), len(pool.kernel)
    result, rest, step = torch.zeros_like(places), places, 1
    for dim in reversed(range(rank - space, rank)):
        at = rest % shape[dim] + first.get(dim, 0)
        rest = rest // shape[dim]
        # Where all of a window is -inf, its first element counts, which may be padding here: torch takes the next after it.
        at = torch.where(at < 0, at % pool.dilation[dim - rank], at) if dim in first else at
        result = result + at * step
        step *= whole[dim]
    return result


def _means(
    pool: _Pool, reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]
) -> torch.Tensor:
    x = call.tensor("self")
    if 0 in made[0].shape:
        return torch.empty(made[0].shape, dtype=x.dtype, device=x.device)
    divisor = _Divisor.of(pool, call, given[0].whole, made[0].whole)
    padding = unpadded(pool.padding, reaches, x.dim())
    value = x if divisor.one is not None else wide(x)
    total: torch.Tensor = call.func(value, pool.kernel, pool.stride, padding, pool.rounds_up, True, divisor.one or 1)
    return total if divisor.one is not None else (total / divisor.at(made[0].box, x)).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Divisor:
    """What sums of windows are divided by: one number, or for each dim one for each result, to be multiplied."""

    one: int | None
    each: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(pool: _Pool, call: BoundCall, whole: Sequence[int], results: Sequence[int]) -> _Divisor:
        """The divisors of a call, which says whether padding counts, or one divisor for all."""
        if call.arg("divisor_override") is not None:
            return _Divisor(call.integer("divisor_override"), ())
        space, counts_padding = len(pool.kernel), call.flag("count_include_pad")
        each = []
        for size, count, reach in zip(whole[-space:], results[-space:], pool.reaches, strict=True):
            starts = [o * reach.stride - reach.padding for o in range(count)]
            low, high = (-reach.padding, size + reach.padding) if counts_padding else (0, size)
            each.append(tuple(min(start + reach.kernel, high) - max(start, low) for start in starts))
        full = all(n == size for counts, size in zip(each, pool.kernel, strict=True) for n in counts)
        return _Divisor(math.prod(pool.kernel) if full else None, tuple(each))

    def at(self, box: Sequence[tuple[int, int]], x: torch.Tensor) -> torch.Tensor:
        """The divisors of some results, for a value like `x`."""
        space = len(self.each)
        result = torch.ones([], dtype=torch.int64, device=x.device)
        for i, counts in enumerate(self.each):
            start, stop = box[len(box) - space + i]
            here = torch.tensor(counts[start:stop], device=x.device)
            result = result * here.reshape([-1, *[1] * (space - 1 - i)])
        return result


@handler(*_GRADIENTS, may_be_direct=True)
def _pool_backward(call: BoundCall) -> object:
    x, pool, space = call.tensor("self"), _Pool.of(call), _SPACE[call.func]
    maxima = "max" in call.name
    looks = [Look(0, tuple(x.shape), back=True), *([Look(2, tuple(x.shape), back=True)] if maxima else [])]
    found = windowed(_positional(call), lambda each, dims: pooling(each, space, dims, linear=True), pool.reaches, looks)
    if found is None:
        return run_by_rule(call)
    plan, call = found
    whole = plan.on_whole(call, [look.tensor for look in looks])
    if whole is not None:
        return whole
    around = [plan.exchanged(look, plan.brought(call, look.tensor)) for look in plan.windows]
    laid = [around[0], hollow(plan, call), *around[1:]]
    return plan.everywhere(call, laid, partial(_max_gradient if maxima else _mean_gradient, pool, plan.reaches))


def _max_gradient(
    pool: _Pool, reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]
) -> torch.Tensor:
    grad, places = call.tensor("grad_output"), call.tensor("indices")
    first, shape = reached(reaches, made[0], given[0])
    if not grad.numel() or 0 in shape:
        return torch.zeros(made[0].shape, dtype=grad.dtype, device=grad.device)
    x = torch.empty(shape, dtype=grad.dtype, device=grad.device)
    places = _here(places, given[1].whole, shape, first, len(pool.kernel))
    padding = unpadded(pool.padding, reaches, grad.dim())
    back = call.func(grad.contiguous(), x, pool.kernel, pool.stride, padding, pool.dilation, pool.rounds_up, places)
    return cropped(back, made[0], first)


def _here(
    places: torch.Tensor, whole: Sequence[int], shape: Sequence[int], first: dict[int, int], space: int
) -> torch.Tensor:
    """Places in the whole as places in what begins somewhere and has a shape."""
    result, step = torch.zeros_like(places), 1
    for dim in reversed(range(len(whole) - space, len(whole))):
        result = result + (places % whole[dim] - first.get(dim, 0)) * step
        places = places // whole[dim]
        step *= shape[dim]
    return result


def _mean_gradient(
    pool: _Pool, reaches: Reaches, call: BoundCall, given: Sequence[Region], made: Sequence[Region]
) -> torch.Tensor:
    grad = call.tensor("grad_output")
    first, shape = reached(reaches, made[0], given[0])
    if not grad.numel() or 0 in shape:
        return torch.zeros(made[0].shape, dtype=grad.dtype, device=grad.device)
    divisor = _Divisor.of(pool, call, given[1].whole, given[0].whole)
    flow = grad.contiguous()
    if divisor.one is None:
        read = [
            reaches[dim].reached(*own, given[0].whole[dim]) if dim in reaches else side
            for dim, (own, side) in enumerate(zip(made[0].box, given[0].box, strict=True))
        ]
        flow = wide(grad) / divisor.at(read, grad)
    x = torch.empty(shape, dtype=flow.dtype, device=grad.device)
    padding = unpadded(pool.padding, reaches, grad.dim())
    back = call.func(flow, x, pool.kernel, pool.stride, padding, pool.rounds_up, True, divisor.one or 1)
    return cropped(back, made[0], first).to(grad.dtype)
