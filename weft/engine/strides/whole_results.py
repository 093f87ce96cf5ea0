"""What an op gives for whole tensors: found without computing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...caches import BoundedCache
from ...rules.call import REFUSALS, BoundCall, each_of, text_of
from ...rules.ops.bags import bags_on_host
from ...rules.ops.indexing import has_masks
from ...rules.ops.pointwise import broadcast_dims
from ...rules.registry import Spec, ops_named, rule_for
from ...runtime.on_paper import aside
from ...runtime.strides import (
    FEW,
    dense_strides,
    elementwise_strides,
    has_single_dims,
    has_windows,
    is_dense,
    row_major,
)
from .kernel_strides import as_laid_by_kernel, is_elementwise
from .stand_ins import OF_DTYPE, UntoldError, given_by_kernels

__all__ = ["whole_results"]

aten = torch.ops.aten


def whole_results(call: BoundCall) -> tuple[Spec | None, ...]:
    """The whole results, found by running the op on tensors without memory; they do not depend on any layout."""
    func, tensors = call.func, call.tensors
    rule = rule_for(func)
    if rule is not None and rule.results is not None:
        with aside():
            told = rule.results(call)
        return tuple(
            spec if spec is None or spec.strides else replace(spec, strides=row_major(spec.shape)) for spec in told
        )
    on_host = all(x.device.type == "cpu" for x in tensors)
    seen = tuple((x.shape, x.stride(), x.dtype) for x in tensors)
    said = call.with_tensors(["tensor"] * len(tensors))
    try:
        key = (func, on_host, seen, text_of((said.args, said.kwargs)))
        specs = _results.get(key)
    except TypeError:  # sizes that a compiler has not settled have no hash
        with aside():
            return _found(call, on_host)
    if specs is None:
        with aside():
            specs = _found(call, on_host)
            specs = _results[key] = _laid(call, specs) if on_host and _leaves_open(call) else specs
    return specs


def _leaves_open(call: BoundCall) -> bool:
    """Whether strides leave the order of dims open in what a call is given, and it is asked of few elements.

    So do dims of size 1 that lie in a way of their own, and windows that overlap. Kernels keep their order, or do not; torch's
    accounts do not say which, and after these strides later results may lie.
    """
    tensors = call.tensors
    if torch.Tag.nondeterministic_seeded in call.func.tags or call.func.namespace != "aten":
        return False
    if call.func is aten.ldexp.Tensor:  # which resizes what it has made of the first
        return 0 < sum(x.numel() for x in tensors) <= FEW
    lying = [(tuple(x.shape), x.stride()) for x in tensors]
    if not any(has_single_dims(*each) or has_windows(*each) for each in lying):
        return False
    some = tensors[:1] if call.func is aten.index_copy.default else tensors  # to which nothing may be copied
    return min(x.numel() for x in some) > 0 and sum(x.numel() for x in tensors) <= FEW


def _laid(call: BoundCall, specs: tuple[Spec | None, ...]) -> tuple[Spec | None, ...]:
    """The results as kernels lay them, where they take zeros."""
    zeros = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_() for x in call.tensors]
    try:
        found = _specs(call.on(zeros))
    except REFUSALS:
        return specs
    known = [None if spec is None else (spec.shape, spec.dtype) for spec in specs]
    return found if [None if spec is None else (spec.shape, spec.dtype) for spec in found] == known else specs


def _found(call: BoundCall, on_host: bool) -> tuple[Spec | None, ...]:
    if call.func is aten.linalg_vector_norm.default and call.arg("dim") is not None:
        call = call.replaced(dim=call.dims("dim"))  # torch 2.11 takes dims counted from the end for others
    if call.func is aten.nansum.default and call.arg("dim") == []:
        call = call.replaced(dim=None)  # which are all dims for its kernel, and none for torch's account of it
    if call.func in _FILLED:
        call = call.replaced(value=_as_kernels_take(call.arg("value"), call.tensors[0].dtype))
    func, kwargs, tensors = call.func, call.kwargs, call.tensors
    specs = _results_of_one_element(call, on_host) or _product(call, on_host)
    if specs is not None:
        return specs
    # What kernels give of nothing they can be asked; torch's accounts of some refuse what these take.
    device = "cpu" if on_host and (_is_of_nothing(func, tensors) or _is_open(func, tensors)) else "meta"
    metas = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in tensors]
    for x in metas if device == "cpu" else ():
        x.zero_()  # indices among them are to be right
    kwargs = {
        name: torch.device(device) if isinstance(value, torch.device) else value for name, value in kwargs.items()
    }
    try:
        specs = _asked_for(call, _specs(BoundCall(func, call.args, kwargs).on(metas)))
    except NotImplementedError as error:
        if OF_DTYPE in str(error):
            raise
        given = given_by_kernels(call)
        raise (given if isinstance(given, NotImplementedError) else UntoldError(str(error))) from None
    except (RuntimeError, LookupError, TypeError, AttributeError, AssertionError, ValueError, ArithmeticError) as error:
        return _given_all_the_same(call, error)
    if on_host:
        specs = tuple(as_laid_by_kernel(func, call.args, metas, specs))
        specs = _with_statistics(call, specs) if func in _OF_STATISTICS else specs
        specs = bags_on_host(call, specs) if func in _OF_BAGS else specs
    return specs


_OF_BAGS = frozenset(ops_named("_embedding_bag _embedding_bag_forward_only"))
_OF_STATISTICS = frozenset(
    ops_named(
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats _batch_norm_with_update"
    )
)


def _with_statistics(call: BoundCall, specs: tuple[Spec | None, ...]) -> tuple[Spec | None, ...]:
    """The results of a norm: its statistics are of the dtype of scales, or else of what is normalized. Torch's accounts differ."""
    dtype = call.tensors[-1].dtype
    return (specs[0], *(spec and replace(spec, dtype=dtype) for spec in specs[1:3]), *specs[3:])


def _given_all_the_same(call: BoundCall, error: Exception) -> tuple[Spec | None, ...]:
    """What kernels give of a call that torch's account of it refuses; raises what they say, or else that."""
    given = given_by_kernels(call)
    if isinstance(given, Exception):
        is_of_elements = any(told in str(given) for told in _OF_STAND_INS)
        if is_of_elements and call.func is aten.index.Tensor and has_masks(call.tensors[1:]):
            raise UntoldError(str(given)) from None
        raise given
    if _OF_ELEMENTS & set(call.func.tags) or any(isinstance(x, torch.Tensor) and x.is_nested for x in each_of(given)):
        raise UntoldError(str(error)) from None
    if given is not NotImplemented:
        return _specs(given)
    if isinstance(error, (AssertionError, OverflowError)) or "convert float NaN" in str(error):
        raise RuntimeError(str(error)) from None  # torch's Python forms assert and convert where its kernels raise
    raise error


_OF_STAND_INS = ("shape mismatch: indexing tensors", "is out of bounds for dimension")
"""What torch says of indices beside masks that other elements stand in for: as many as are true may fit, and no index is 1 that is not."""
_OF_ELEMENTS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""What ops have whose results, or the sizes of these, are others for other elements."""


def _asked_for(call: BoundCall, specs: tuple[Spec | None, ...]) -> tuple[Spec | None, ...]:
    """Without the gradient of the input of batch norm where it is masked: torch's account gives it, its kernel does not."""
    if call.func is not aten.native_batch_norm_backward.default or call.flags("output_mask")[0]:
        return specs
    return None, *specs[1:]


_FILLED = frozenset(
    {aten.masked_fill.Scalar, aten.masked_fill_.Scalar, aten.masked_fill.Tensor, aten.masked_fill_.Tensor}
)


def _as_kernels_take(value: object, dtype: torch.dtype) -> object:
    """What a tensor is filled with: torch's account refuses complex numbers for others, of which kernels take some."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=dtype) if value.is_complex() and not dtype.is_complex else value
    if not isinstance(value, complex) or dtype.is_complex:
        return value
    return bool(value) if dtype is torch.bool else value if value.imag else value.real


def _is_of_nothing(func: torch._ops.OpOverload, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call has tensors without elements, and beside these at most numbers, whatever they are."""
    if all(x.numel() for x in tensors) or func is aten._pdist_backward.default:  # whose kernel divides by zero then
        return False
    if any(type(size) is not int for x in tensors for size in (*x.shape, *x.stride())):
        return False  # a compiler leaves some open, which no kernel takes
    if func is aten.convolution.default and not tensors[0].numel():
        return True  # no weight is read then
    return all(not x.numel() or (x.numel() == 1 and x.is_floating_point()) for x in tensors)


def _is_open(func: torch._ops.OpOverload, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether dims of size 1 leave the strides of a lookup open, which torch's account says otherwise; of few it is made."""
    if func is not aten.index.Tensor or not any(x.dim() > 1 and 1 in x.shape for x in tensors):
        return False
    return sum(x.numel() for x in tensors) <= FEW


def _results_of_one_element(call: BoundCall, on_host: bool) -> tuple[Spec | None, ...] | None:
    """The whole results of an elementwise op, whose shape is known: only their dtype is asked for, of one element.

    Torch finds the results of many such ops on tensors without memory in Python, for which it loads its compiler: that
    takes seconds, at the first op of a program. None: this op or this call has to be asked in that way.
    """
    func, tensors = call.func, call.tensors
    if not is_elementwise(func) or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if any(isinstance(value, (torch.device, torch.memory_format)) for value in call.kwargs.values()):
        return None
    inputs, output, sizes = broadcast_dims(tuple(tuple(x.shape) for x in tensors))
    known = [
        tuple(x.shape[i] if dims else 1 for i, dims in enumerate(given))
        for x, given in zip(tensors, inputs, strict=True)
    ]
    shape = tuple(sizes[factor] for (factor,) in output)
    writes = func._schema.is_mutable
    if known != [tuple(x.shape) for x in tensors] or (writes and shape != tuple(tensors[0].shape)):
        return None  # shapes that do not broadcast, which torch says better
    if on_host and 0 in shape and _are_few(tensors):
        return _given_by_kernels_of_nothing(call)
    try:
        found = _specs(call.on([torch.ones((1,) * x.ndim, dtype=x.dtype, device="cpu") for x in tensors]))
    except RuntimeError:  # a dtype that no kernel of the host takes, or a mistake
        if on_host and all(x.numel() for x in tensors):
            raise  # of no elements torch takes what it refuses of one, as 0 for a divisor
        return None
    strides = elementwise_strides(_as_converted(tensors, found), numbers=_has_numbers(call))
    return tuple(None if spec is None else Spec(shape, spec.dtype, strides) for spec in found)


def _are_few(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether tensors have few elements, and sizes that a compiler has settled."""
    settled = all(type(size) is int for x in tensors for size in (*x.shape, *x.stride()))
    return settled and sum(x.numel() for x in tensors) <= FEW


def _given_by_kernels_of_nothing(call: BoundCall) -> tuple[Spec | None, ...] | None:
    """What kernels give that have nothing to compute: how that lies hangs on what else they are given, numbers too."""
    try:
        return _specs(call.on([torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).zero_() for x in call.tensors]))
    except RuntimeError:
        return None


def _as_converted(tensors: Sequence[torch.Tensor], results: Sequence[Spec | None]) -> Sequence[torch.Tensor]:
    """Two tensors as kernels of the host read them: what is of another dtype than they compute in is copied, without its gaps."""
    lying = [(tuple(x.shape), x.stride()) for x in tensors]
    if len(tensors) != 2 or all(is_dense(*each) for each in lying):
        return tensors
    dtype, made = torch.result_type(*[torch.empty((0,) * x.dim(), dtype=x.dtype) for x in tensors]), results[0]
    if made is not None and made.dtype.is_floating_point and not (dtype.is_floating_point or dtype.is_complex):
        dtype = made.dtype  # as quotients are
    return [
        x if x.dtype is dtype or is_dense(*each) else torch.empty_strided(x.shape, dense_strides(*each), device="meta")
        for x, each in zip(tensors, lying, strict=True)
    ]


def _has_numbers(call: BoundCall) -> bool:
    """Whether numbers stand where an op takes tensors."""
    given = [call.arg(each.name) for each in call.func._schema.arguments if isinstance(each.type, torch.TensorType)]
    return any(isinstance(value, (int, float, complex)) for value in given)


def _product(call: BoundCall, on_host: bool) -> tuple[Spec | None, ...] | None:
    """The product of two matrices, or of many, in the same way: kernels lay it out row by row."""
    if call.func not in _PRODUCTS or any(x.dim() < 2 for x in call.tensors[-2:]):
        return None
    *added, left, right = (tuple(x.shape) for x in call.tensors)
    shape = (*left[:-1], right[-1])
    if (*left[:-2], left[-1]) != right[:-1] or any(not _spreads_to(x, shape) for x in added):
        return None
    try:
        # Of nothing, kernels take dtypes that they refuse otherwise.
        few = [torch.ones([min(size, 1) for size in x.shape], dtype=x.dtype, device="cpu") for x in call.tensors]
        (found,) = _specs(call.on(few))
    except RuntimeError:  # a dtype that no kernel of the host takes, or a mistake
        if on_host:
            raise
        return None
    assert found is not None
    return (Spec(shape, found.dtype, row_major(shape)),)


def _spreads_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of a shape is broadcast to another."""
    return len(shape) <= len(target) and all(
        one in (1, size) for one, size in zip(reversed(shape), reversed(target), strict=False)
    )


_PRODUCTS = frozenset({aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default})


def _specs(result: object) -> tuple[Spec | None, ...]:
    values = each_of(result)
    return tuple(
        Spec(tuple(value.shape), value.dtype, value.stride()) if isinstance(value, torch.Tensor) else None
        for value in values
    )


_results = BoundedCache[tuple[object, ...], tuple[Spec | None, ...]](1 << 14)
