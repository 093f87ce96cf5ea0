"""What two checkpoints have in common, tensor by tensor, whatever files and layouts they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from .files.index import Index
from .files.opening import index_at
from .reading import Reader
from .tree import Node, children

__all__ = ["differences", "values_of"]


def differences(one: Path, other: Path) -> Iterator[str]:
    """A line for each thing that is not the same; nothing for checkpoints with the same tensors and values.

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
            yield f"{name}: only in {str(one if name in values else other)!r}"
        elif values[name] != others[name] and str(values[name]) != str(others[name]):  # not a number is itself here
            yield f"{name}: {values[name]!r} and {others[name]!r}"
    for name in [*first.tensors, *(name for name in second.tensors if name not in first.tensors)]:
        if name not in first.tensors or name not in second.tensors:
            yield f"{name}: only in {str(one if name in first.tensors else other)!r}"
        else:
            yield from _tensor_differences(name, (one, first), (other, second))


def values_of(node: Node, path: tuple[str, ...] = ()) -> dict[str, object]:
    """The values of a structure that are no tensors, by name."""
    if "value" in node:
        return {".".join(path) or "value": node["value"]}
    found: dict[str, object] = {}
    for key, below in children(node).items():
        found |= values_of(below, (*path, str(key)))
    return found


def _tensor_differences(name: str, one: tuple[Path, Index], other: tuple[Path, Index]) -> Iterator[str]:
    a, b = one[1].tensors[name], other[1].tensors[name]
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        yield f"{name}: {_kind(a.dtype, a.shape)} and {_kind(b.dtype, b.shape)}"
        return
    x, y = _whole(name, *one), _whole(name, *other)
    if torch.equal(x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8)):
        return
    x, y = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (x, y))
    unequal = (x != y) & ~(x.isnan() & y.isnan())
    if not unequal.any():
        yield f"{name}: equal numbers in other bits"
        return
    most = (x - y).abs()[unequal].max().item()
    yield f"{name}: {int(unequal.sum())} of {x.numel()} elements differ, by {most:g} at most"


def _whole(name: str, path: Path, index: Index) -> torch.Tensor:
    reader = Reader(path, index)
    x = reader.whole(name)
    with reader.opened() as read:
        read(lambda _: None)
    return x


def _kind(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
