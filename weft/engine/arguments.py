"""Reading an op's arguments by name, as its schema says them."""

from __future__ import annotations

from typing import cast

import torch

__all__ = ["argument", "as_dim", "as_dims"]


def argument(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], name: str) -> object:
    """An argument of a call, or its default.

    >>> argument(torch.ops.aten.slice.Tensor, ("x", 1), {}, "step")
    1
    """
    for i, each in enumerate(func._schema.arguments):
        if each.name == name:
            if i < len(args):
                return args[i]
            return kwargs.get(name, each.default_value)
    raise TypeError(f"{func} has no argument {name!r}")


def as_dim(dim: object, rank: int) -> int:
    """A dim as a number from 0.

    >>> as_dim(-1, 3)
    2
    """
    rank = max(rank, 1)
    number = cast(int, dim)
    if not -rank <= number < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {number})")
    return number % rank


def as_dims(dims: object, rank: int) -> list[int]:
    """One dim or several as numbers from 0.

    >>> as_dims([0, -1], 3), as_dims(1, 3)
    ([0, 2], [1])
    """
    return [as_dim(dim, rank) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]
