"""What two checkpoints have in common, tensor by tensor, whatever files and layouts they lie in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import torch

from ..sharding.geometry import Box, box_shape
from .files.boxes import boxes_of
from .files.index import Index
from .files.opening import index_at
from .memory import BUCKET
from .reading import Reader
from .tree import Node, children

__all__ = ["differences", "legible", "values_of"]

_Part = tuple[str, torch.Tensor, torch.Tensor]
"""A name, and a part of the tensor of this name in one checkpoint and in the other."""


def differences(one: Path, other: Path) -> Iterator[str]:
    """A line for each thing that is not the same; nothing for checkpoints with the same tensors and values.

    It takes a bucket of each at a time, and the memory to compare these.

    >>> import weft
    >>> weft.checkpoint.save({"x": torch.zeros(3), "n": 1}, "a")
    >>> weft.checkpoint.save({"x": torch.tensor([0.0, 0.0, 0.5]), "n": 2}, "b")
    >>> list(differences(Path("a"), Path("b")))
    ['n: 1 and 2', 'x: 1 of 3 elements differ, by 0.5 at most']
    """
    first, second = index_at(one), index_at(other)
    values, others = values_of(first.structure), values_of(second.structure)
    for name in [*values, *(name for name in others if name not in values)]:
        if name not in others or name not in values:
            yield f"{legible(name)}: only in {str(one if name in values else other)!r}"
        elif values[name] != others[name] and str(values[name]) != str(others[name]):  # not a number is itself here
            yield f"{legible(name)}: {values[name]!r} and {others[name]!r}"
    alike: list[str] = []
    for name in [*first.tensors, *(name for name in second.tensors if name not in first.tensors)]:
        a, b = first.tensors.get(name), second.tensors.get(name)
        if a is None or b is None:
            yield f"{legible(name)}: only in {str(other if a is None else one)!r}"
        elif (a.shape, a.dtype) != (b.shape, b.dtype):
            yield f"{legible(name)}: {_kind(a.dtype, a.shape)} and {_kind(b.dtype, b.shape)}"
        else:
            alike.append(name)
    for name, parts in groupby(_parts(alike, Reader(one, first), Reader(other, second)), lambda part: part[0]):
        line = _difference(parts)
        if line is not None:
            yield f"{legible(name)}: {line}"


def legible(name: str) -> str:
    r"""A name as a terminal can show it: one that would move its cursor, or is no text, is quoted.

    >>> print(legible("model.weight"), legible("a\nb"))
    model.weight 'a\nb'
    """
    return name if name.isprintable() else repr(name)


def values_of(node: Node, path: tuple[str, ...] = ()) -> dict[str, object]:
    """The values of a structure that are no tensors, by name."""
    if "value" in node:
        return {".".join(path) or "value": node["value"]}
    if "unread" in node:
        return {".".join(path) or "value": f"({node['unread']})"}
    found: dict[str, object] = {}
    for key, below in children(node).items():
        found |= values_of(below, (*path, str(key)))
    return found


def _parts(names: list[str], one: Reader, other: Reader) -> Iterator[_Part]:
    """All parts of some tensors, one after another, as they are in each of the two."""
    for batch in _batches(one.index, names):
        for (name, _), x, y in zip(batch, _read(batch, one), _read(batch, other), strict=True):
            yield name, x, y


def _batches(index: Index, names: Iterable[str]) -> Iterator[list[tuple[str, Box]]]:
    """Boxes of tensors, as many at a time as a bucket holds."""
    batch: list[tuple[str, Box]] = []
    size = 0
    for name in names:
        saved = index.tensors[name]
        for box in boxes_of(saved.shape, BUCKET // saved.dtype.itemsize):
            nbytes = math.prod(box_shape(box)) * saved.dtype.itemsize
            if batch and size + nbytes > BUCKET:
                yield batch
                batch, size = [], 0
            batch.append((name, box))
            size += nbytes
    if batch:
        yield batch


def _read(batch: list[tuple[str, Box]], reader: Reader) -> list[torch.Tensor]:
    parts = [reader.box(name, box) for name, box in batch]
    with reader.opened() as read:
        read(lambda _: None)
    return parts


def _difference(parts: Iterable[_Part]) -> str | None:
    """What differs in the parts of one tensor; None if nothing does."""
    bits, unequal, total = False, 0, 0
    most: list[torch.Tensor] = []
    for _, x, y in parts:
        total += x.numel()
        if torch.equal(x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8)):
            continue
        bits = True
        apart = _apart(x, y)
        apart = apart[apart != 0]  # what is not a number is not 0
        if apart.numel():
            unequal += apart.numel()
            most.append(apart.max())
    if most:
        return f"{unequal} of {total} elements differ, by {torch.stack(most).max().item():g} at most"
    return "equal numbers in other bits" if bits else None


def _apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How far each element is from the other, 0 for equal ones and for two that are not numbers.

    >>> _apart(torch.tensor([2**62, 3]), torch.tensor([2**62 + 1, 3])).tolist()
    [1.0, 0.0]
    """
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (x, y))
    apart = (a - b).abs().masked_fill_((a == b) | (a.isnan() & b.isnan()), 0)
    if x.is_floating_point() or x.is_complex():
        return apart
    exact = (x.long() - y.long()).abs().double()  # of large whole numbers, doubles know the first digits
    return torch.where(apart < 2**62, exact, apart)


def _kind(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
