"""The new tensors of a row of names: their shapes, their dtypes, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple, final

import torch

from ..sharding.geometry import resized
from .leaves import Leaf
from .renaming import Renamed

__all__ = ["SourceRegion", "common_dtype", "new_tensors"]


@final
class SourceRegion(NamedTuple):
    """A region of an old tensor that becomes one of a new tensor: where it begins in each, and its shape."""

    old: str
    there: tuple[int, ...]
    here: tuple[int, ...]
    shape: tuple[int, ...]


def new_tensors(
    row: Renamed, leaves: Mapping[str, Leaf], into: Mapping[str, Leaf] | None
) -> Iterable[tuple[str, tuple[int, ...], list[SourceRegion]]]:
    """The new tensors of a row: names, shapes and what they are made of."""
    shapes = [leaves[name].shape for name in row.old]
    if len(row.new) == len(row.old) == 1:
        nowhere = (0,) * len(shapes[0])
        yield row.new[0], shapes[0], [SourceRegion(row.old[0], nowhere, nowhere, shapes[0])]
        return
    dim = _dim(row, shapes[0])
    if len(row.new) == 1:
        _check_fits(row, shapes, dim)
        whole = resized(shapes[0], dim, sum(shape[dim] for shape in shapes))
        starts = [0, *accumulate(shape[dim] for shape in shapes)]
        yield (
            row.new[0],
            whole,
            [
                SourceRegion(old, (0,) * len(whole), _at(whole, dim, start), shape)
                for old, start, shape in zip(row.old, starts, shapes, strict=False)
            ],
        )
        return
    sizes = _sizes(row, shapes[0][dim], dim, into)
    starts = [0, *accumulate(sizes)]
    for new, start, size in zip(row.new, starts, sizes, strict=False):
        shape = resized(shapes[0], dim, size)
        yield new, shape, [SourceRegion(row.old[0], _at(shape, dim, start), (0,) * len(shape), shape)]


def common_dtype(
    name: str, row: Renamed, leaves: Mapping[str, Leaf], asked: torch.dtype | None, into: Leaf | None
) -> torch.dtype:
    """The dtype of what a new tensor is made of; parts may differ where it is said which they are to have."""
    dtypes = dict.fromkeys(leaves[old].dtype for old in row.old)
    if len(dtypes) > 1 and not ((asked or into) and all(each.is_floating_point for each in dtypes)):
        listed = ", ".join(f"{old!r} {leaves[old].dtype}" for old in row.old)
        raise TypeError(
            f"{name!r} is put together of several dtypes: {listed}. Floating-point ones become one where dtype= or into= says which; "
            "cast the others first"
        )
    return next(iter(dtypes))


def _dim(row: Renamed, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= row.dim < len(shape):
        raise ValueError(f"{row.old[0]!r} of shape {shape} has no dim {row.dim} along which {row.new} is put together")
    return row.dim % len(shape)


def _check_fits(row: Renamed, shapes: list[tuple[int, ...]], dim: int) -> None:
    kinds = {resized(shape, dim, 0) if len(shape) > dim else shape for shape in shapes}
    if len(kinds) > 1:
        listed = ", ".join(f"{name!r} {shape}" for name, shape in zip(row.old, shapes, strict=True))
        raise ValueError(f"{row.new[0]!r} cannot be put together along dim {dim}: its parts differ elsewhere: {listed}")


def _sizes(row: Renamed, size: int, dim: int, into: Mapping[str, Leaf] | None) -> list[int]:
    """How large the parts of a fused tensor are: as said, as they are where they go to, or all the same."""
    if row.sizes is not None:
        sizes = list(row.sizes)
    elif into is not None:
        sizes = [into[name].shape[dim] for name in row.new]
    elif size % len(row.new):
        raise ValueError(
            f"dim {dim} of {row.old[0]!r} has the size {size}, which is not {len(row.new)} equal parts: give Fused(names, sizes=...)"
        )
    else:
        sizes = [size // len(row.new)] * len(row.new)
    if sum(sizes) != size:
        raise ValueError(
            f"dim {dim} of {row.old[0]!r} has the size {size}, but its parts {row.new} have {sizes}: they add up to {sum(sizes)}"
        )
    return sizes


def _at(shape: tuple[int, ...], dim: int, start: int) -> tuple[int, ...]:
    return tuple(start if each == dim else 0 for each in range(len(shape)))
