"""Calling an op on other tensors than it was given, and what it would give for the whole ones: found without computing it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch

from ...rules.pointwise import broadcast_dims
from ...rules.registry import Spec
from ...runtime.strides import elementwise_strides
from .kernel_strides import as_laid_by_kernel, is_elementwise

__all__ = ["Args", "Kwargs", "called", "swapped", "whole_results"]

Args = tuple[object, ...]
Kwargs = dict[str, object]


def swapped(value: object, replacements: Iterator[object]) -> object:
    """The same arguments with each tensor replaced by the next replacement."""
    if isinstance(value, (torch.Tensor, Spec)):
        return next(replacements)
    if isinstance(value, (list, tuple)):
        return type(value)([swapped(item, replacements) for item in value])
    if isinstance(value, dict):
        return {name: swapped(item, replacements) for name, item in value.items()}
    return value


def called(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[object]) -> object:
    """Calls an op with each tensor of its arguments replaced."""
    replacements = iter(tensors)
    try:
        if not kwargs:
            return func(*cast(Args, swapped(args, replacements)))
        return func(*cast(Args, swapped(args, replacements)), **cast(Kwargs, swapped(kwargs, replacements)))
    except RuntimeError as error:
        # A kernel with threads that asks for memory it may write to, when it only reads, cannot take lazy copies.
        if "COW.cpp" not in str(error) or func._schema.is_mutable:
            raise
    replacements = iter([x.clone() if isinstance(x, torch.Tensor) else x for x in tensors])
    return func(*cast(Args, swapped(args, replacements)), **cast(Kwargs, swapped(kwargs, replacements)))


def whole_results(
    func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]
) -> tuple[Spec | None, ...]:
    """The whole results, found by running the op on tensors without memory; they do not depend on any layout."""
    on_host = all(x.device.type == "cpu" for x in tensors)
    stand_ins = iter(["tensor"] * len(tensors))
    seen = tuple((x.shape, x.stride(), x.dtype) for x in tensors)
    key = (func, on_host, seen, repr(swapped(args, stand_ins)), repr(swapped(kwargs, stand_ins)))
    specs = _results.get(key)
    if specs is None:
        # What kernels give of nothing they can be asked; torch's accounts of some refuse what these take.
        device = "cpu" if on_host and _is_of_nothing(tensors) else "meta"
        metas = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in tensors]
        specs = _results_of_one_element(func, args, kwargs, tensors)
        if specs is None:
            kwargs = {
                name: torch.device(device) if isinstance(value, torch.device) else value
                for name, value in kwargs.items()
            }
            try:
                specs = _specs(called(func, args, kwargs, metas))
            except AssertionError as error:  # torch's Python forms assert what its kernels raise
                raise RuntimeError(str(error)) from None
        if on_host:
            specs = tuple(as_laid_by_kernel(func, args, metas, specs))
        while len(_results) >= _MOST_RESULTS:
            _results.pop(next(iter(_results)), None)
        _results[key] = specs
    return specs


def _is_of_nothing(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a call has tensors without elements, and beside these at most numbers, whatever they are."""
    if all(x.numel() for x in tensors):
        return False
    return all(not x.numel() or (x.numel() == 1 and x.is_floating_point()) for x in tensors)


def _results_of_one_element(
    func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]
) -> tuple[Spec | None, ...] | None:
    """The whole results of an elementwise op, whose shape is known: only their dtype is asked for, of one element.

    Torch finds the results of many such ops on tensors without memory in Python, for which it loads its compiler: that
    takes seconds, at the first op of a program. None: this op or this call has to be asked in that way.
    """
    if not is_elementwise(func) or torch.Tag.nondeterministic_seeded in func.tags:
        return None
    if any(isinstance(value, (torch.device, torch.memory_format)) for value in kwargs.values()):
        return None
    inputs, output, sizes = broadcast_dims(tuple(tuple(x.shape) for x in tensors))
    known = {
        tuple(x.shape[i] if dims else 1 for i, dims in enumerate(given))
        for x, given in zip(tensors, inputs, strict=True)
    }
    shape = tuple(sizes[factor] for (factor,) in output)
    writes = func._schema.is_mutable
    if known != {tuple(x.shape) for x in tensors} or (writes and shape != tuple(tensors[0].shape)):
        return None  # shapes that do not broadcast, which torch says better
    try:
        found = _specs(
            called(func, args, kwargs, [torch.ones((1,) * x.ndim, dtype=x.dtype, device="cpu") for x in tensors])
        )
    except RuntimeError:  # a dtype that no kernel of the host takes, or a mistake
        return None
    strides = elementwise_strides(tensors)
    return tuple(None if spec is None else Spec(shape, spec.dtype, strides) for spec in found)


def _specs(result: object) -> tuple[Spec | None, ...]:
    values = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(
        Spec(tuple(value.shape), value.dtype, value.stride()) if isinstance(value, torch.Tensor) else None
        for value in values
    )


_results: dict[tuple[object, ...], tuple[Spec | None, ...]] = {}
_MOST_RESULTS = 1 << 14
