"""Lookups by index: a table that is split along what is looked up gives masked local lookups and a pending sum.

index_select   v d, i -> i d      v is split: each device looks up what it holds, and zeros stand for the rest
gather         v d, i d -> i d
embedding      v d, ... -> ... d

Of tables without elements torch alone knows what it takes: such calls have no factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._subclasses.fake_tensor import is_fake

from ..bounds import Bound
from ..call import BoundCall
from ..dims import broadcast_into, numbered, one_each, sizes_of
from ..factors import Dims, Factors
from ..registry import Region, Rule, bounds_without_rules, rules

__all__ = ["MASKS", "Placed", "bounded", "bounds_of_each", "has_masks", "inside_of", "placed_dims", "split_indices"]

aten = torch.ops.aten


def bounded(error: type[Exception], *, negative: bool = False) -> Callable[[BoundCall], tuple[Bound, ...]]:
    """What one index may be that counts along the dim before it: x, dim, index."""

    def bounds(call: BoundCall) -> tuple[Bound, ...]:
        dim = call.dim("dim")
        size = call.tensors[0].shape[dim]
        return (Bound(1, dim, size, -size if negative else 0, error),)

    return bounds


def bounds_of_each(call: BoundCall) -> tuple[Bound, ...]:
    """What a list of indices may be, one for each dim or none."""
    shape = call.tensors[0].shape
    given = [d for d, index in enumerate(call.optional_list("indices")) if index is not None]
    return tuple(Bound(k + 1, d, shape[d], -shape[d], called=k) for k, d in enumerate(given))


def inside_of(region: Region, dim: int, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An index into the whole as one into a part of it, and where it points into that part."""
    start, stop = region.box[dim]
    index = torch.where(index < 0, index + region.whole[dim], index)
    return index - start, (index >= start) & (index < stop)


def has_values(x: torch.Tensor) -> bool:
    """Whether it can be seen now which elements of a tensor are which: neither while a compiler looks on nor on paper.

    >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
    (True, False)
    """
    return not (x.is_meta or is_fake(x))


def with_one_more(x: torch.Tensor, dim: int) -> torch.Tensor:
    """A part with one index more, for what points elsewhere."""
    return torch.cat([x, x.new_zeros([1 if d == dim else size for d, size in enumerate(x.shape)])], dim)


def _local_index(index: torch.Tensor, region: Region, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An index into a part, 0 where it points elsewhere, and where it does not."""
    local, inside = inside_of(region, dim, index)
    return torch.where(inside, local, 0), inside


def _masked(result: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    return torch.where(inside, result, torch.zeros((), dtype=result.dtype, device=result.device))


def _index_select(call: BoundCall) -> Factors | None:
    x, index = call.tensors
    if not x.ndim or index.ndim != 1 or 0 in x.shape:
        return None
    dim, table = call.dim("dim"), tuple(numbered(x.ndim))
    output = (*table[:dim], ("i",), *table[dim + 1 :])
    return Factors((table, (("i",),)), (output,), sizes_of(x.shape) | {"i": index.shape[0]}, linear=0)


def _selected(call: BoundCall) -> tuple[Bound, ...]:
    # Torch has a way of its own for the second dim, which differs in that.
    return bounded(RuntimeError if call.dim("dim") == 1 else IndexError)(call)


def _looked_up(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    """What is here of what is asked for, and nothing of the rest; indices stand along a dim, or one at each place."""
    x, dim = call.tensor("self"), call.dim("dim")
    if given[0].is_whole(dim):
        if call.func is aten.index_select.default:
            _refuse_of_nothing(x, dim, call.tensor("index"))
        return call()
    if not x.shape[dim]:
        return x.new_zeros(made[0].shape)
    local, inside = _local_index(call.tensor("index"), given[0], dim)
    if call.func is aten.index_select.default:
        inside = inside.view([-1 if d == dim else 1 for d in range(x.dim())])
    return _masked(call.func(x, dim, local), inside)


def _refuse_of_nothing(x: torch.Tensor, dim: int, index: torch.Tensor) -> None:
    """Refuses indices of a part without elements as torch does of one with some: of nothing at all, its error is of another kind."""
    if not x.numel() and x.shape[dim]:
        x.new_zeros(x.shape[dim]).index_select(0, index.reshape(-1))


def _embedding(call: BoundCall) -> Factors | None:
    weight, indices = call.tensors
    if weight.ndim != 2 or 0 in weight.shape:
        return None
    rows, features = weight.shape
    sizes = sizes_of(indices.shape, "i")
    places = one_each(sizes)
    outputs: tuple[Dims, ...] = ((*places, ("e",)),)
    return Factors(((("v",), ("e",)), places), outputs, sizes | {"v": rows, "e": features}, linear=0)


def _local_embedding(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    weight = call.tensor("weight")
    if given[0].is_whole(0):
        _refuse_of_nothing(weight, 0, call.tensor("indices"))
        return call()
    if not weight.shape[0]:
        return weight.new_zeros(made[0].shape)
    local, inside = _local_index(call.tensor("indices"), given[0], 0)
    return _masked(call.func(weight, local), inside.unsqueeze(-1))


def _rows(call: BoundCall) -> tuple[Bound, ...]:
    return (Bound(1, 0, call.tensors[0].shape[0]),)


def _embedding_backward(call: BoundCall) -> Factors:
    grad, indices = call.tensors
    sizes = sizes_of(indices.shape, "i")
    places, whole = one_each(sizes), frozenset(sizes if call.flag("scale_grad_by_freq") else ())
    return Factors(((*places, ("e",)), places), (((), ("e",)),), sizes | {"e": grad.shape[-1]}, whole, linear=0)


def placed_dims(shapes: Sequence[Sequence[int]], dim: int) -> tuple[tuple[Dims, ...], dict[str, int], frozenset[str]]:
    """The dims of tensors that are indexed along one dim, the first by the others: x, index, source and so on.

    Along the other dims, tensors of one size share a factor; where sizes differ, all of them are whole.
    The dim itself is `v` in the first tensor and `i` in the others, where these are equally long; else they are whole there.
    """
    result: list[list[tuple[str, ...]]] = [[] for _ in shapes]
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    for d in range(len(shapes[0])):
        along = shapes[1:] if d == dim else shapes
        same = all(shape[d] == along[0][d] for shape in along)  # no set of sizes: open ones have no hash
        for k, shape in enumerate(shapes):
            name = ("i" if d == dim else f"d{d}") if same else f"x{k}_{d}"
            if d == dim and k == 0:
                name = "v"
            if name.startswith("x"):
                whole.add(name)
            sizes[name] = shape[d]
            result[k].append((name,))
    return tuple(map(tuple, result)), sizes, frozenset(whole)


def _gather(call: BoundCall) -> Factors | None:
    x, index = call.tensors
    if not x.ndim or x.ndim != index.ndim or 0 in x.shape:
        return None
    (table, places), sizes, whole = placed_dims((x.shape, index.shape), call.dim("dim"))
    return Factors((table, places), (places,), sizes, whole, linear=0)


rules |= {
    aten.index_select.default: Rule(_index_select, local=_looked_up, bounds=_selected),
    aten.gather.default: Rule(_gather, local=_looked_up, bounds=bounded(RuntimeError)),
    aten.embedding.default: Rule(_embedding, local=_local_embedding, bounds=_rows),
    aten.embedding_dense_backward.default: Rule(_embedding_backward),
}


_COUNTED, MASKS = (torch.int64, torch.int32), (torch.bool, torch.uint8)


def _check_indices(indices: Sequence[torch.Tensor]) -> None:
    if any(index.dtype not in (*_COUNTED, *MASKS) for index in indices):
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
        self.own = one_each(f"i{k}" for k in range(rank))
        """The factors of the index's dims."""
        self.table = tuple(numbered(x.ndim))
        adjacent = bool(self.dims) and self.dims[-1] - self.dims[0] == len(self.dims) - 1
        self.at = self.dims[0] if adjacent else 0
        """Where the index's dims begin in the result: in place where it takes adjacent dims, else in front."""
        kept = [dim for i, dim in enumerate(self.table) if i not in self.dims]
        self.result = (*kept[: self.at], *self.own, *kept[self.at :])
        self.sizes |= sizes_of(x.shape)

    def index_dims(self) -> list[Dims]:
        """The factors of each index tensor."""
        sizes = [self.sizes[name] for (name,) in self.own]
        return [broadcast_into(index.shape, self.own, sizes) for index in self.indices]


def has_masks(indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether some indices are masks: what they give depends on values."""
    return any(index is not None and index.dtype in MASKS for index in indices)


def split_indices(call: BoundCall, region: Region) -> list[int]:
    """The indexed dims of which a device has only a part."""
    return [d for d, index in enumerate(call.optional_list("indices")) if index is not None and not region.is_whole(d)]


def _index(call: BoundCall) -> Factors | None:
    x, indices = call.tensors[0], call.optional_list("indices")
    if has_masks(indices) or len(indices) > x.ndim or 0 in x.shape:
        return None
    placed = Placed(x, indices)
    return Factors((placed.table, *placed.index_dims()), (placed.result,), placed.sizes, linear=0)


def _local_indexed(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    x, indices, cut = call.tensor("self"), call.optional_list("indices"), split_indices(call, given[0])
    if not cut:
        return call()
    if not all(x.shape[d] for d in cut):
        return x.new_zeros(made[0].shape)
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    for d in cut:
        index = indices[d]
        assert index is not None
        indices[d], here = _local_index(index, given[0], d)
        inside = inside & here
    placed, result = Placed(x, indices), call.func(x, indices)
    after = result.dim() - len(placed.own) - placed.at
    return _masked(result, inside.reshape(*inside.shape, *[1] * after))


rules[aten.index.Tensor] = rules[aten._unsafe_index.Tensor] = Rule(_index, local=_local_indexed, bounds=bounds_of_each)


def _take(call: BoundCall) -> Factors:
    table, places = sizes_of(call.tensor("self").shape), sizes_of(call.tensor("index").shape, "i")
    dims = one_each(places)
    return Factors((one_each(table), dims), (dims,), table | places, frozenset(table), linear=0)


_EVERYWHERE = "out of range: tried to access index {index} on a tensor of {size} elements."


def _places(call: BoundCall) -> tuple[Bound, ...]:
    """What an index into all elements of a tensor, one after another, may be."""
    count = call.tensors[0].numel()
    return (Bound(1, 0, count, -count, words=_EVERYWHERE, is_seen=True),) if count else ()


def _reduced_at(call: BoundCall) -> tuple[Bound, ...]:
    """What the index of a write by reduction may be."""
    dim = call.dim("dim")
    x = call.tensors[0]
    return (Bound(1, dim, x.shape[dim], words="index out of range in self"),) if x.dim() else ()


def _picked(call: BoundCall) -> tuple[Bound, ...]:
    """Which classes there are."""
    x = call.tensors[0]
    return (Bound(1, x.dim() - 1, x.shape[-1], error=RuntimeError, words="target out of range"),) if x.dim() else ()


def _unpooled(call: BoundCall) -> tuple[Bound, ...]:
    """Where what was pooled may have been."""
    sizes = call.integers("output_size")
    if len(sizes) != 2:
        return ()
    words = f"Found an invalid max index: {{index}} (output volumes are of size {sizes[0]}x{sizes[1]})"
    return (Bound(1, -1, sizes[0] * sizes[1], error=RuntimeError, words=words),)


rules[aten.take.default] = Rule(_take, bounds=_places)
bounds_without_rules.update(
    dict.fromkeys((aten.put.default, aten.put_.default), _places)
    | dict.fromkeys((aten.index_reduce.default, aten.index_reduce_.default), _reduced_at)
    | {aten.multi_margin_loss.default: _picked, aten.max_unpool2d.default: _unpooled}
)
