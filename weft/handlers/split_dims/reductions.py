"""Reductions that are more than one pending reduction: means, variances, norms.

Where the reduced dims are whole, the op runs as it is. Where they are split, it is said by sums and maxima, which need
only small all-reduces: right for shards of any size, and nothing is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.sharded import ShardedTensor
from ...rules.arguments import dim_set
from ...rules.call import BoundCall

__all__ = ["is_cut", "is_norm", "moments", "norm_of", "norm_terms", "wide"]

aten = torch.ops.aten

Args = tuple[object, ...]
Kwargs = dict[str, object]
Op = torch._ops.OpOverload

_SHORT_FLOATS = (torch.float16, torch.bfloat16)


def is_cut(x: ShardedTensor, dims: frozenset[int]) -> bool:
    """Whether one of these dims is split, or a reduction is pending, of something: what there is of nothing, torch says."""
    return (bool(x._layout.pending) or any(x._layout.splits[d] for d in dims)) and x.numel() > 0


def _is_said_by_sums(x: ShardedTensor, dims: Sequence[int]) -> bool:
    """Whether a reduction is to be said by others: torch refuses it of numbers that are neither real nor complex."""
    return is_cut(x, frozenset(dims)) and (x.is_floating_point() or x.is_complex())


def _given(func: Op, args: Args, kwargs: Kwargs, name: str, default: object = None) -> object:
    for i, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if i < len(args) and not argument.kwarg_only:
                return args[i]
            return kwargs.get(name, argument.default_value if argument.has_default_value() else default)
    return default


def _reduced(func: Op, args: Args, kwargs: Kwargs) -> tuple[ShardedTensor, list[int], bool]:
    """What is reduced, along which dims, and whether they are kept."""
    x = cast(ShardedTensor, args[0])
    dims = dim_set(_given(func, args, kwargs, "dim"), x.dim())
    return x, sorted(dims), bool(_given(func, args, kwargs, "keepdim", False))


def wide(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The value in the precision that torch reduces it in."""
    wanted = dtype or x.dtype
    if wanted in _SHORT_FLOATS:
        wanted = torch.float32
    return x if x.dtype is wanted else x.to(wanted)


@handler(aten.mean.default, aten.mean.dim)
def _mean(call: BoundCall) -> object:
    """A mean over shards of different sizes is the sum divided by the count, not the mean of means."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x, dims, keepdim = _reduced(func, args, kwargs)
    dtype = cast("torch.dtype | None", kwargs.get("dtype")) or x.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {x.dtype}"
        )
    count = math.prod(x.shape[d] for d in dims)
    total = aten.sum.dim_IntList(x, dims, keepdim, dtype=torch.float32 if dtype in _SHORT_FLOATS else dtype)
    mean = total / count if count else total * math.nan
    return mean if mean.dtype is dtype else mean.to(dtype)


def moments(x: torch.Tensor, dims: Sequence[int], correction: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance along dims, kept: first the mean, then what is left of it, so that no digits cancel."""
    count = math.prod(x.shape[d] for d in dims)
    mean = aten.sum.dim_IntList(x, dims, True) / count if count else aten.sum.dim_IntList(x, dims, True) * math.nan
    rest = x - mean
    squares = (rest * rest.conj()).real if rest.is_complex() else rest * rest
    freedom = max(0.0, count - (1.0 if correction is None else float(cast(float, correction))))
    total = aten.sum.dim_IntList(squares, dims, True)
    return mean, total / freedom  # by a number: what is pending is reduced before it is divided by zero


def _without(x: torch.Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> torch.Tensor:
    if not keepdim:
        x = aten.squeeze.dims(x, dims)
    return x if x.dtype is dtype else x.to(dtype)


@handler(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _variance(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, dims, keepdim = _reduced(func, args, kwargs)
    if not _is_said_by_sums(x, dims):
        return run_by_rule(call)
    mean, variance = moments(wide(x), dims, _given(func, args, kwargs, "correction"))
    name = func._schema.name.removeprefix("aten::")
    spread = variance.sqrt() if name.startswith("std") else variance
    real = x.dtype.to_real() if x.is_complex() else x.dtype
    first = _without(spread, dims, keepdim, real)
    return (first, _without(mean, dims, keepdim, x.dtype)) if name.endswith("mean") else first


def norm_terms(x: torch.Tensor, order: float, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    """What a norm is made of: a sum or an extreme along dims, pending where they are split."""
    size = x.abs()
    if order in (math.inf, -math.inf):
        return cast(torch.Tensor, (aten.amax if order > 0 else aten.amin)(size, dims, keepdim))
    if order == 0:
        size = size != 0
    elif order != 1:
        size = size * size if order == 2 else size**order
    return cast(torch.Tensor, aten.sum.dim_IntList(size, dims, keepdim))


def is_norm(order: float) -> bool:
    """Whether what a norm of this order is made of is the norm itself."""
    return order in (math.inf, -math.inf, 0, 1)


def norm_of(terms: torch.Tensor, order: float) -> torch.Tensor:
    """The norm, from what it is made of."""
    if is_norm(order):
        return terms
    return terms.sqrt() if order == 2 else terms ** (1 / order)


@handler(
    aten.linalg_vector_norm.default,
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim_dtype,
)
def _norm(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, dims, keepdim = _reduced(func, args, kwargs)
    if not _is_said_by_sums(x, dims):
        return run_by_rule(call)
    given = _given(func, args, kwargs, "ord" if func is aten.linalg_vector_norm.default else "p", 2)
    order = 2.0 if given is None else float(cast(float, given))
    dtype = cast("torch.dtype | None", _given(func, args, kwargs, "dtype"))
    real = (dtype or x.dtype).to_real() if (dtype or x.dtype).is_complex else dtype or x.dtype
    result = norm_of(norm_terms(wide(x, dtype), order, dims, keepdim), order)
    return result if result.dtype is real else result.to(real)


@handler(aten.logsumexp.default)
def _logsumexp(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, dims, keepdim = _reduced(func, args, kwargs)
    is_said = bool(_given(func, args, kwargs, "dim") != [])  # along no dim, torch refuses what has any
    if not is_said or not is_cut(x, frozenset(dims)) or not x.is_floating_point():
        return run_by_rule(call)
    value = wide(x)
    top = aten.amax(value, dims, True)
    top = torch.where(top.abs() == math.inf, torch.zeros_like(top), top)
    result = aten.sum.dim_IntList((value - top).exp(), dims, True).log() + top
    return _without(result, dims, keepdim, x.dtype)


@handler(aten.aminmax.default)
def _aminmax(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    named = _given(func, args, kwargs, "dim")
    dims = [] if named is None else [cast(int, named)]
    if not is_cut(x, dim_set(named, x.dim())):
        return run_by_rule(call)
    keepdim = bool(_given(func, args, kwargs, "keepdim", False))
    return aten.amin(x, dims, keepdim), aten.amax(x, dims, keepdim)


@handler(aten.count_nonzero.default)
def _count_nonzero(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    named = _given(func, args, kwargs, "dim")
    return aten.count_nonzero.dim_IntList(x, [] if named is None else [named])


@handler(aten.equal.default)
def _equal(call: BoundCall) -> bool:
    """Whether two tensors have one shape and all elements equal; every process gets the same answer."""
    args = call.args
    first, second = cast("tuple[torch.Tensor, torch.Tensor]", args)
    return first.shape == second.shape and bool((first == second).all().item())
