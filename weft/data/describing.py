"""A batch in words that processes can compare: what it is made of, and of which shapes, but for the rows that each has."""

from __future__ import annotations

import torch

from ..sharding.geometry import Interval
from .structure import has_tensors, opened

__all__ = ["described", "parts_told", "row_count"]

Rows = tuple[int, Interval]
"""Of how many rows which ones are here."""


def described(part: object, size: Rows | None) -> object:
    """The whole batch in words that JSON has; of what is no tensor, a list is what each process has for itself.

    >>> described({"x": torch.ones(2, 3), "name": ["a", "b"]}, (4, (0, 2)))
    {'dict': [['x', {'tensor': [4, 3], 'dtype': 'float32'}], ['name', {'own': 'list'}]]}
    """
    if isinstance(part, torch.Tensor):
        return {"tensor": _whole_shape(part, size), "dtype": str(part.dtype).removeprefix("torch.")}
    if part is None or isinstance(part, (bool, int, float, str)):
        return part
    found = opened(part)
    if found is None:
        raise TypeError(
            "a batch has tensors, numbers and texts, in dicts, tuples, lists and dataclasses, but one has a "
            f"{type(part).__name__}: give the loader a collate_fn that makes tensors of it, or a list with one for each sample"
        )
    if found.kind in ("list", "tuple") and not has_tensors(part):
        return {"own": found.kind}
    return {found.kind: [[name, described(each, size)] for name, each in found.parts]}


def parts_told(told: object) -> tuple[str, list[tuple[object, object]]] | None:
    """What was described that has parts, and these, by name; None where it has none.

    >>> parts_told({"tuple": [[0, None]]}), parts_told({"own": "list"})
    (('tuple', [(0, None)]), None)
    """
    if not isinstance(told, dict) or "tensor" in told or "own" in told:
        return None
    ((kind, parts),) = told.items()
    return str(kind), [(name, words) for name, words in parts]


def _whole_shape(part: torch.Tensor, size: Rows | None) -> list[int]:
    """The shape of a tensor of which some rows are here; one without dims is the same for all rows."""
    if size is None or not part.dim():
        return list(part.shape)
    count, (low, high) = size
    if part.shape[0] != high - low:
        raise ValueError(
            f"the first dim of a batch's tensors is the batch, but of {high - low} samples the loader made a tensor of shape "
            f"{tuple(part.shape)}: give it a collate_fn that stacks them along dim 0"
        )
    return [count, *part.shape[1:]]


def row_count(batch: object) -> int | None:
    """How many rows a whole batch has, by its tensors; None where these do not tell.

    >>> row_count((torch.ones(4, 2), ["a"])), row_count(["a"])
    (4, None)
    """
    counts = set(_counts(batch))
    return counts.pop() if len(counts) == 1 else None


def _counts(batch: object) -> list[int]:
    if isinstance(batch, torch.Tensor):
        return [batch.shape[0]] if batch.dim() else []
    found = opened(batch)
    return [] if found is None else [count for _, each in found.parts for count in _counts(each)]
