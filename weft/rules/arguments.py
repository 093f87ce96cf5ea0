"""The tensors of a call by the names of its arguments: some may be missing, and rules speak of the others by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch

from .call import BoundCall
from .factors import Dims

__all__ = ["arranged", "broadcast_into", "dim_set", "one_each", "position", "tensor_names"]


def tensor_names(call: BoundCall) -> Iterator[str]:
    """The argument names of a call's tensors, in the order of `call.tensors`."""
    names = [argument.name for argument in call.func._schema.arguments]
    for name, value in (*zip(names, call.args, strict=False), *call.kwargs.items()):
        if isinstance(value, torch.Tensor):
            yield name
        elif isinstance(value, (list, tuple)):
            yield from (name for item in value if isinstance(item, torch.Tensor))


def arranged(call: BoundCall, dims: Mapping[str, Dims]) -> tuple[Dims, ...]:
    """The dims of a call's tensors in their order, from the dims of its arguments."""
    return tuple(dims[name] for name in tensor_names(call))


def position(call: BoundCall, name: str) -> int | None:
    """Where among a call's tensors an argument stands, or None when it is not given."""
    return next((i for i, given in enumerate(tensor_names(call)) if given == name), None)


def one_each(factors: Iterable[str | None]) -> Dims:
    """Dims of one factor each; None: a dim without one.

    >>> one_each(["n", None])
    (('n',), ())
    """
    return tuple(() if factor is None else (factor,) for factor in factors)


def broadcast_into(shape: Sequence[int], target: Dims, sizes: Sequence[int]) -> Dims:
    """The dims of a tensor that is broadcast to a result with these dims and sizes.

    >>> broadcast_into((1, 4), (("m",), ("n",)), (3, 4))
    ((), ('n',))
    """
    ahead = len(target) - len(shape)
    return tuple(target[ahead + i] if size == sizes[ahead + i] else () for i, size in enumerate(shape))


def dim_set(value: object, rank: int) -> frozenset[int]:
    """The dims that an argument names: one, several, or all when it is None or empty.

    >>> sorted(dim_set([-1], 3)), sorted(dim_set(None, 2))
    ([2], [0, 1])
    """
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return frozenset(range(rank))
    named = cast("Sequence[int]", value) if isinstance(value, (list, tuple)) else [cast(int, value)]
    most = max(rank, 1)
    for dim in named:
        if not -most <= dim < most:
            raise IndexError(
                f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})"
            )
    dims = [dim % most for dim in named]
    for dim in dims:
        if dims.count(dim) > 1:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return frozenset(dims) if rank else frozenset()
