"""Reductions that are more than one pending reduction: means, variances, norms.

Where the reduced dims are whole, the op runs as it is. Where they are split, it is said by sums and maxima, which need
only small all-reduces: right for shards of any size, and nothing is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.running.repeating import repeat_by_rule
from ...engine.sharded import ShardedTensor, sharded
from ...engine.strides.whole_results import whole_results
from ...rules.arguments import reduced_dims
from ...rules.call import BoundCall

__all__ = ["SHORT_FLOATS", "as_real", "is_cut", "is_norm", "moments", "norm_of", "norm_terms", "wide"]

aten = torch.ops.aten

SHORT_FLOATS = (torch.float16, torch.bfloat16)


def is_cut(x: ShardedTensor, dims: Iterable[int]) -> bool:
    """Whether one of these dims is split, or a reduction is pending, of something: what there is of nothing, torch says."""
    return (bool(x._layout.pending) or any(x._layout.splits[d] for d in dims)) and x.numel() > 0


def _is_said_by_sums(x: ShardedTensor, dims: Sequence[int]) -> bool:
    """Whether a reduction is to be said by others: torch refuses it of numbers that are neither real nor complex."""
    return is_cut(x, dims) and (x.is_floating_point() or x.is_complex())


def wide(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The value in the precision that torch reduces it in."""
    wanted = dtype or x.dtype
    if wanted in SHORT_FLOATS:
        wanted = torch.float32
    return x if x.dtype is wanted else x.to(wanted)


@handler(aten.nansum.default, may_be_direct=True)
def _sum_of_numbers(call: BoundCall) -> object:
    """No dims are all dims for the kernel of this sum, and none for torch's accounts of it, as in traced programs: they are said in full."""
    return run_by_rule(call) if call.arg("dim") != [] else call.replaced(dim=None)()


@handler(aten.mean.default, aten.mean.dim)
def _mean(call: BoundCall) -> object:
    """A mean over shards of different sizes is the sum divided by the count, not the mean of means."""
    x, dims = call.tensor("self"), reduced_dims(call)
    dtype = call.dtype() or x.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. "
            f"Got: {x.dtype}"
        )
    count, keepdim = math.prod(x.shape[d] for d in dims), call.flag("keepdim")
    inner = torch.float32 if dtype in SHORT_FLOATS else dtype

    said = {} if x.dtype is inner else {"dtype": inner}  # calls without keywords are found again in less time

    def of(x: torch.Tensor) -> torch.Tensor:
        total = aten.sum.dim_IntList(x, dims, keepdim, **said)
        mean: torch.Tensor = total / count if count else total * math.nan
        return mean if mean.dtype is dtype else mean.to(dtype)

    call.repeat = lambda args, _: of(args[0])
    return of(x)


def moments(x: torch.Tensor, dims: Sequence[int], correction: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance along dims, kept: first the mean, then what is left of it, so that no digits cancel."""
    count = math.prod(x.shape[d] for d in dims)
    total = aten.sum.dim_IntList(x, dims, True)
    mean = total / count if count else total * math.nan
    rest = x - (x if count == 1 else mean)  # one element has no spread, however its mean was rounded
    squares = (rest * rest.conj()).real if rest.is_complex() else rest * rest
    freedom = max(0.0, count - (1.0 if correction is None else correction))
    return mean, aten.sum.dim_IntList(
        squares, dims, True
    ) / freedom  # by a number: what is pending is reduced before it is divided by zero


def _without(x: torch.Tensor, dims: Sequence[int], keepdim: bool) -> torch.Tensor:
    return x if keepdim else aten.squeeze.dims(x, dims)


@handler(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction)
def _variance(call: BoundCall) -> object:
    x, dims, keepdim = sharded(call, "self"), reduced_dims(call), call.flag("keepdim")
    if not _is_said_by_sums(x, dims):
        return run_by_rule(call)
    mean, variance = moments(wide(x), dims, call.optional_number("correction"))
    spread = variance.sqrt() if call.name.startswith("std") else variance
    first = as_real(_without(spread, dims, keepdim), x.dtype)
    return (first, _without(mean, dims, keepdim).to(x.dtype)) if call.name.endswith("mean") else first


def norm_terms(x: torch.Tensor, order: float, dims: list[int], keepdim: bool) -> torch.Tensor:
    """What a norm is made of: a sum or an extreme along dims, pending where they are split."""
    size = x.abs()
    if order in (math.inf, -math.inf):
        return size.amax(dims, keepdim) if order > 0 else size.amin(dims, keepdim)
    if order == 0:
        size = size != 0
    elif order != 1:
        size = size * size if order == 2 else size**order
    return size.sum(dims, keepdim)


def is_norm(order: float) -> bool:
    """Whether what a norm of this order is made of is the norm itself."""
    return order in (math.inf, -math.inf, 0, 1)


def norm_of(terms: torch.Tensor, order: float) -> torch.Tensor:
    """The norm, from what it is made of."""
    if is_norm(order):
        return terms
    return terms.sqrt() if order == 2 else terms ** (1 / order)


def as_real(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A value in a dtype, without the imaginary part where that is one of complex numbers."""
    dtype = dtype.to_real() if dtype.is_complex else dtype
    return x if x.dtype is dtype else x.to(dtype)


@handler(
    aten.linalg_vector_norm.default,
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dtype,
    aten.norm.ScalarOpt_dim_dtype,
)
def _norm(call: BoundCall) -> object:
    x, dims = sharded(call, "self"), reduced_dims(call)
    if not _is_said_by_sums(x, dims):
        if x.is_meta and call.arg("dim") is not None:
            return run_by_rule(call.replaced(dim=dims))  # torch 2.11 takes dims counted from the end for others
        result = run_by_rule(call)
        call.repeat = repeat_by_rule(call, result)
        return result
    if call.dtype() is not None:
        whole_results(call)  # in which dtypes a norm may be asked for, torch says
    given = call.optional_number("ord" if call.has("ord") else "p")
    order = 2.0 if given is None else given
    terms = norm_terms(wide(x, call.dtype()), order, dims, call.flag("keepdim"))
    return as_real(norm_of(terms, order), call.dtype() or x.dtype)


@handler(aten.logsumexp.default)
def _logsumexp(call: BoundCall) -> object:
    x, dims = sharded(call, "self"), reduced_dims(call)
    # Along no dim, torch refuses what has any.
    if not call.integers("dim") or not is_cut(x, dims) or not x.is_floating_point():
        return run_by_rule(call)
    value = wide(x)
    top = aten.amax(value, dims, True)
    top = torch.where(top.abs() == math.inf, torch.zeros_like(top), top)
    result = aten.sum.dim_IntList((value - top).exp(), dims, True).log() + top
    return _without(result, dims, call.flag("keepdim")).to(x.dtype)


@handler(aten.aminmax.default)
def _aminmax(call: BoundCall) -> object:
    x, dims, keepdim = sharded(call, "self"), call.integers("dim"), call.flag("keepdim")
    if not is_cut(x, reduced_dims(call)):
        return run_by_rule(call)
    return aten.amin(x, dims, keepdim), aten.amax(x, dims, keepdim)


@handler(aten.count_nonzero.default)
def _count_nonzero(call: BoundCall) -> object:
    return aten.count_nonzero.dim_IntList(call.tensor("self"), call.integers("dim"))


@handler(aten.equal.default)
def _equal(call: BoundCall) -> bool:
    """Whether two tensors have one shape and all elements equal; every process gets the same answer."""
    first, second = call.tensors
    return first.shape == second.shape and bool((first == second).all().item())
