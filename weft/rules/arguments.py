"""The tensors of a call by the names of its arguments: some may be missing, and rules speak of the others by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from .call import BoundCall
from .factors import Dims

__all__ = ["arranged", "asked_for", "position", "reduced_dims", "tensor_names"]

_ALONG_NONE = (torch.ops.aten.all.dims, torch.ops.aten.any.dims)
"""The ops that an empty list of dims leaves every element alone with."""


def tensor_names(call: BoundCall) -> Iterator[str]:
    """The argument names of a call's tensors, in the order of `call.tensors`."""
    names = [argument.name for argument in call.func._schema.arguments]
    for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield name
        elif isinstance(value, (list, tuple)):
            yield from (name for item in value if isinstance(item, torch.Tensor))


def arranged(call: BoundCall, dims: Mapping[str, Dims]) -> tuple[Dims, ...]:
    """The dims of a call's tensors in their order, from the dims of its arguments; those that are not named are whole."""
    return tuple(dims.get(name, ((),) * x.dim()) for name, x in zip(tensor_names(call), call.tensors, strict=True))


def position(call: BoundCall, name: str) -> int | None:
    """Where among a call's tensors an argument stands, or None when it is not given."""
    return next((i for i, given in enumerate(tensor_names(call)) if given == name), None)


def reduced_dims(call: BoundCall) -> list[int]:
    """The dims that an op goes along, in order: one, several, or all when it names none, where that does not mean none.

    >>> reduced_dims(BoundCall(torch.ops.aten.amax.default, (torch.ones(2, 3), [-1])))
    [1]
    >>> reduced_dims(BoundCall(torch.ops.aten.sum.default, (torch.ones(2, 3),)))
    [0, 1]
    >>> reduced_dims(BoundCall(torch.ops.aten.all.dims, (torch.ones(2, 3), [])))
    []
    """
    rank = call.tensors[0].dim()
    dims = call.dims("dim")
    if not dims and call.func in _ALONG_NONE and call.arg("dim") is not None:
        return []
    for dim in dims:
        if dims.count(dim) > 1:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return sorted(dims) if dims and rank else list(range(rank))


def asked_for(call: BoundCall, gradients: Sequence[Dims]) -> tuple[Dims | None, ...]:
    """The dims of the gradients that the mask of a backward op asks for; None for the others."""
    return tuple(dims if wanted else None for dims, wanted in zip(gradients, call.flags("output_mask"), strict=False))
