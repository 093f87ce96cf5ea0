"""Input from anything: torch tensors, NumPy and DLPack arrays, numbers, nested lists, and pytrees of them."""

from __future__ import annotations

from collections.abc import Callable

import optree
import torch

from ..engine.wrong_calls import refuse_nested

__all__ = ["as_tensor", "map_tensors"]

TensorLike = object
"""A tensor, a DLPack or NumPy array, a number, a nested list of numbers, or a pytree of these."""


def _is_numbers(value: object) -> bool:
    """Whether a value is a number or a nested list of numbers, so the data of one tensor."""
    if isinstance(value, (bool, int, float, complex)):
        return True
    return isinstance(value, (list, tuple)) and bool(value) and all(map(_is_numbers, value))


def as_tensor(value: object, what: str = "the input") -> torch.Tensor:
    """A torch tensor with the value of anything that has one.

    >>> as_tensor([[1, 2], [3, 4]]).shape
    torch.Size([2, 2])
    """
    if isinstance(value, torch.Tensor):
        refuse_nested(value)
        return value
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        writeable = getattr(getattr(value, "flags", None), "writeable", True)
        if not writeable and hasattr(value, "copy"):
            value = value.copy()
        return torch.utils.dlpack.from_dlpack(value)
    if _is_numbers(value) or (isinstance(value, (list, tuple)) and not value):
        return torch.tensor(value)
    if hasattr(value, "__array__"):
        return torch.as_tensor(value)
    raise TypeError(
        f"{what} must be a tensor, an array or numbers, but got {type(value).__name__}: "
        "pass a torch tensor, a NumPy or DLPack array, a number or a nested list of numbers"
    )


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], tree: object, what: str) -> object:
    """Applies a function to every tensor of a pytree; a nested list of numbers is one tensor."""
    if isinstance(tree, torch.Tensor):
        return function(as_tensor(tree, what))
    mapped: object = optree.tree_map(lambda leaf: function(as_tensor(leaf, what)), tree, is_leaf=_is_numbers)  # type: ignore[arg-type]
    return mapped
