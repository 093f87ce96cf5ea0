"""Lookups by index: a table that is split along what is looked up gives masked local lookups and a pending sum.

index_select   v d, i -> i d      v is split: each device looks up what it holds, and zeros stand for the rest
gather         v d, i d -> i d
embedding      v d, ... -> ... d

Of tables without elements torch alone knows what it takes: such calls have no factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from .bounds import Bound
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules
from .slicing import along, named

__all__ = ["Placed", "bounded", "bounds_of_each", "placed_dims"]

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


def bounded(error: type[Exception], *, negative: bool = False) -> Callable[[BoundCall], tuple[Bound, ...]]:
    """What one index may be that counts along the dim before it: x, dim, index."""

    def bounds(call: BoundCall) -> tuple[Bound, ...]:
        shape = call.tensors[0].shape
        dim = along(call.args[1], len(shape))
        return (Bound(1, dim, shape[dim], -shape[dim] if negative else 0, error),)

    return bounds


def bounds_of_each(call: BoundCall) -> tuple[Bound, ...]:
    """What a list of indices may be, one for each dim or none."""
    shape = call.tensors[0].shape
    given = [d for d, index in enumerate(_specs(call.args[1])) if index is not None]
    return tuple(Bound(k + 1, d, shape[d], -shape[d], called=k) for k, d in enumerate(given))


def _local_index(index: torch.Tensor, region: Region, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An index into the whole as one into a part of it, and where it points into that part."""
    start, stop = region.box[dim]
    index = torch.where(index < 0, index + region.whole[dim], index)
    inside = (index >= start) & (index < stop)
    return torch.where(inside, index - start, 0), inside


def _masked(result: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    return torch.where(inside, result, torch.zeros((), dtype=result.dtype, device=result.device))


def _index_select(call: BoundCall) -> Factors | None:
    x, index = call.tensors
    dim = along(call.args[1], x.ndim)
    if not x.ndim or index.ndim != 1 or 0 in x.shape:
        return None
    table = named(x.ndim)
    output = list(table)
    output[dim] = ("i",)
    sizes = {f"d{i}": size for i, size in enumerate(x.shape)} | {"i": index.shape[0]}
    return Factors((tuple(table), (("i",),)), (tuple(output),), sizes, linear=0)


def _selected(call: BoundCall) -> tuple[Bound, ...]:
    dim = along(call.args[1], call.tensors[0].ndim)
    return bounded(RuntimeError if dim else IndexError)(call)  # torch has two kernels, which differ in that


def _local_index_select(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args = call.func, call.args
    return _looked_up(func, args, given, made, along_dim=True)


def _looked_up(func: Op, args: Args, given: Sequence[Region], made: Sequence[Region], *, along_dim: bool) -> object:
    """What is here of what is asked for, and nothing of the rest; indices stand `along_dim`, or one at each place."""
    x, index = cast(torch.Tensor, args[0]), cast(torch.Tensor, args[2])
    dim = along(args[1], x.dim())
    if given[0].is_whole(dim):
        return func(*args)
    if not x.shape[dim]:
        return x.new_zeros(made[0].shape)
    local, inside = _local_index(index, given[0], dim)
    mask = inside.view([-1 if d == dim else 1 for d in range(x.dim())]) if along_dim else inside
    return _masked(func(x, dim, local), mask)


def _embedding(call: BoundCall) -> Factors | None:
    weight, indices = call.tensors
    if weight.ndim != 2 or 0 in weight.shape:
        return None
    places = tuple((f"i{k}",) for k in range(indices.ndim))
    sizes = {"v": weight.shape[0], "e": weight.shape[1]} | {f"i{k}": s for k, s in enumerate(indices.shape)}
    return Factors(((("v",), ("e",)), places), ((*places, ("e",)),), sizes, linear=0)


def _local_embedding(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    weight, indices = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    if given[0].is_whole(0):
        return func(*args, **kwargs)
    if not weight.shape[0]:
        return weight.new_zeros(made[0].shape)
    local, inside = _local_index(indices, given[0], 0)
    return _masked(func(weight, local), inside.unsqueeze(-1))


def _rows(call: BoundCall) -> tuple[Bound, ...]:
    return (Bound(1, 0, call.tensors[0].shape[0]),)


def _embedding_backward(call: BoundCall) -> Factors:
    grad, indices = call.tensors
    places = tuple((f"i{k}",) for k in range(indices.ndim))
    sizes = {f"i{k}": s for k, s in enumerate(indices.shape)} | {"e": grad.shape[-1]}
    whole = frozenset(name for (name,) in places) if call.arg("scale_grad_by_freq") else frozenset()
    return Factors(((*places, ("e",)), places), (((), ("e",)),), sizes, whole, linear=0)


def placed_dims(shapes: Sequence[Sequence[int]], dim: int) -> tuple[tuple[Dims, ...], dict[str, int], frozenset[str]]:
    """The dims of tensors that are indexed along one dim, the first by the others: x, index, source and so on.

    Along the other dims, tensors of one size share a factor; where sizes differ, all of them are whole.
    The dim itself is `v` in the first tensor; in the others, those as long as the second share `i`.
    """
    result: list[list[tuple[str, ...]]] = [[] for _ in shapes]
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    for d in range(len(shapes[0])):
        same = len({shape[d] for shape in shapes}) == 1
        for k, shape in enumerate(shapes):
            name = f"d{d}" if same else f"x{k}_{d}"
            if d == dim:
                name = "v" if k == 0 else "i" if shape[d] == shapes[1][d] else f"x{k}_{d}"
            if name.startswith("x"):
                whole.add(name)
            sizes[name] = shape[d]
            result[k].append((name,))
    return tuple(map(tuple, result)), sizes, frozenset(whole)


def _gather(call: BoundCall) -> Factors | None:
    x, index = call.tensors
    if not x.ndim or x.ndim != index.ndim or 0 in x.shape:
        return None
    (table, places), sizes, whole = placed_dims((x.shape, index.shape), along(call.args[1], x.ndim))
    return Factors((table, places), (places,), sizes, whole, linear=0)


def _local_gather(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args = call.func, call.args
    return _looked_up(func, args, given, made, along_dim=False)


rules |= {
    aten.index_select.default: Rule(_index_select, local=_local_index_select, bounds=_selected),
    aten.gather.default: Rule(_gather, local=_local_gather, bounds=bounded(RuntimeError)),
    aten.embedding.default: Rule(_embedding, local=_local_embedding, bounds=_rows),
    aten.embedding_dense_backward.default: Rule(_embedding_backward),
}


_COUNTED, _MASKS = (torch.int64, torch.int32), (torch.bool, torch.uint8)


def _check_indices(indices: Sequence[torch.Tensor]) -> None:
    if any(index.dtype not in (*_COUNTED, *_MASKS) for index in indices):
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    try:
        torch.broadcast_shapes(*(index.shape for index in indices))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in indices)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


class Placed:
    """An advanced index: which dims of `x` it takes, and where its own dims stand in the result."""

    def __init__(self, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> None:
        self.dims = [d for d, index in enumerate(indices) if index is not None]
        self.indices = [index for index in indices if index is not None]
        _check_indices(self.indices)
        rank = max((index.ndim for index in self.indices), default=0)
        self.sizes: dict[str, int] = {}
        for index in self.indices:
            for k, size in enumerate(index.shape, start=rank - index.ndim):
                if size != 1 or f"i{k}" not in self.sizes:
                    self.sizes[f"i{k}"] = size
        self.own: list[tuple[str, ...]] = [(f"i{k}",) for k in range(rank)]
        """The factors of the index's dims."""
        table = named(x.ndim)
        adjacent = self.dims == list(range(self.dims[0], self.dims[0] + len(self.dims))) if self.dims else True
        self.at = self.dims[0] if self.dims and adjacent else 0
        """Where the index's dims begin in the result: in place where it takes adjacent dims, else in front."""
        kept = [d for i, d in enumerate(table) if i not in self.dims]
        before = self.at if adjacent else 0
        self.result = [*kept[:before], *self.own, *kept[before:]]
        self.table = table
        self.sizes |= {f"d{i}": size for i, size in enumerate(x.shape)}

    def index_dims(self) -> list[Dims]:
        """The factors of each index tensor."""
        rank = len(self.own)
        return [
            tuple(
                () if size == 1 and self.sizes[f"i{k}"] != 1 else (f"i{k}",)
                for k, size in enumerate(index.shape, start=rank - index.ndim)
            )
            for index in self.indices
        ]

    @property
    def taken(self) -> frozenset[str]:
        """The factors of the dims that are indexed."""
        return frozenset(f"d{d}" for d in self.dims)


def _specs(given: object) -> list[torch.Tensor | None]:
    return [each if isinstance(each, torch.Tensor) else None for each in cast("Sequence[object]", given)]


def _is_counted(indices: Sequence[torch.Tensor | None]) -> bool:
    return all(index is None or index.dtype not in _MASKS for index in indices)


def _index(call: BoundCall) -> Factors | None:
    indices = _specs(call.args[1])
    if not _is_counted(indices) or len(indices) > call.tensors[0].ndim or 0 in call.tensors[0].shape:
        return None
    placed = Placed(call.tensors[0], indices)
    return Factors((tuple(placed.table), *placed.index_dims()), (tuple(placed.result),), placed.sizes, linear=0)


def _local_indexed(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    func, args = call.func, call.args
    x = cast(torch.Tensor, args[0])
    indices = list(cast("Sequence[torch.Tensor | None]", args[1]))
    cut = [d for d, index in enumerate(indices) if index is not None and not given[0].is_whole(d)]
    if not cut:
        return func(*args)
    if not all(x.shape[d] for d in cut):
        return x.new_zeros(made[0].shape)
    inside: torch.Tensor | None = None
    for d in cut:
        index = indices[d]
        assert index is not None
        indices[d], here = _local_index(index, given[0], d)
        inside = here if inside is None else inside & here
    result = cast(torch.Tensor, func(x, indices))
    assert inside is not None
    rank = max(index.dim() for index in indices if index is not None)
    placed = Placed(x, indices)
    after = result.dim() - rank - placed.at
    return _masked(result, inside.reshape(*inside.shape, *[1] * after))


rules[aten.index.Tensor] = rules[aten._unsafe_index.Tensor] = Rule(_index, local=_local_indexed, bounds=bounds_of_each)


def _take(call: BoundCall) -> Factors:
    x, index = call.tensors
    table = named(x.ndim)
    places = tuple((f"i{k}",) for k in range(index.ndim))
    sizes = {f"d{i}": s for i, s in enumerate(x.shape)} | {f"i{k}": s for k, s in enumerate(index.shape)}
    return Factors((tuple(table), places), (places,), sizes, frozenset(n for (n,) in table), linear=0)


rules[aten.take.default] = Rule(_take)
