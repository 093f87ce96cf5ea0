"""Writes by index: a tensor that is split along what is written to takes only what lands on each part of it.

index_add      v d, i, i d -> v d      i is split: a pending sum, to which x is added once
scatter_add    v d, i d, i d -> v d
index_put      as the lookup x[indices], with `accumulate`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..bounds import Bound
from ..call import BoundCall
from ..dims import broadcast_into, numbered, sizes_of
from ..factors import Dims, Factors
from ..registry import Region, Rule, ops_named, rules
from .indexing import (
    Placed,
    bounded,
    bounds_of_each,
    has_masks,
    has_values,
    inside_of,
    placed_dims,
    split_indices,
    with_one_more,
)

aten = torch.ops.aten


def _written(
    inputs: tuple[Dims, ...], sizes: dict[str, int], whole: frozenset[str], index: frozenset[str], *, adds: bool
) -> Factors:
    """The factors of a write to the first tensor of the last; without adding, order matters, so the index is whole."""
    if adds:
        return Factors(inputs, inputs[:1], sizes, whole, linear=len(inputs) - 1, added=frozenset({0}))
    return Factors(inputs, inputs[:1], sizes, whole | index, reduces=None)


def _scatter(*, adds: bool) -> Rule:
    """x, dim, index and a source or a value."""

    def factors(call: BoundCall) -> Factors | None:
        x = call.tensors[0]
        if not x.ndim or 0 in x.shape or any(each.ndim != x.ndim for each in call.tensors):
            return None
        inputs, sizes, whole = placed_dims([each.shape for each in call.tensors], call.dim("dim"))
        return _written(inputs, sizes, whole, frozenset({"i"}), adds=adds)

    return Rule(factors, local=_local_scatter, looks_for=True, bounds=bounded(RuntimeError))


def _local_scatter(call: BoundCall, given: Sequence[Region], _: Sequence[Region]) -> object:
    dim = call.dim("dim")
    if given[0].is_whole(dim):
        return call()
    index, inside = inside_of(given[0], dim, call.tensor("index"))
    return _cut_off(call.replaced(index=torch.where(inside, index, given[0].shape[dim])), dim)


def _cut_off(call: BoundCall, dim: int) -> object:
    """A write of which one index more takes what lands elsewhere; it is cut off again."""
    x = call.tensor("self")
    result = call.replaced(self=with_one_more(x, dim)).result().narrow(dim, 0, x.shape[dim])
    return x.copy_(result) if call.func._schema.is_mutable else result


for _op in ops_named(
    "scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_reduce.two "
    "scatter_.src scatter_.value scatter_.reduce scatter_.value_reduce scatter_reduce_.two"
):
    rules[_op] = _scatter(adds=False)
rules[aten.scatter_add.default] = rules[aten.scatter_add_.default] = _scatter(adds=True)


def _index_written(bounds: Callable[[BoundCall], tuple[Bound, ...]], *, adds: bool = False) -> Rule:
    """x, dim, a 1-d index, and a source or a value."""

    def factors(call: BoundCall) -> Factors | None:
        x, index, *sources = call.tensors
        if not x.ndim or index.ndim != 1 or 0 in x.shape or any(each.ndim not in (0, x.ndim) for each in sources):
            return None
        dim, table = call.dim("dim"), tuple(numbered(x.ndim))
        placed = (*table[:dim], ("i",), *table[dim + 1 :])
        inputs = (table, (("i",),), *(placed if each.ndim else () for each in sources))
        sizes = sizes_of(x.shape) | {"i": index.shape[0]}
        return _written(inputs, sizes, frozenset(), frozenset({"i"}), adds=adds)

    return Rule(factors, local=_local_index_written, looks_for=True, bounds=bounds)


def _local_index_written(call: BoundCall, given: Sequence[Region], made: Sequence[Region]) -> object:
    dim = call.dim("dim")
    if given[0].is_whole(dim) or not has_values(call.tensor("index")):
        return _local_scatter(call, given, made)
    index, inside = inside_of(given[0], dim, call.tensor("index"))
    here = inside.nonzero().squeeze(1)
    call = call.replaced(index=index.index_select(0, here))
    source = call.optional("source")
    if source is None:
        return call()
    source = source if source.dim() else source.unsqueeze(0)  # one number for one index, which may be elsewhere
    return call.replaced(source=source.index_select(dim, here))()


def _added_to(call: BoundCall) -> tuple[Bound, ...]:
    """Torch scatters along the first and the last dim; elsewhere it looks at the indices one by one, in other words."""
    rank, dim = call.tensors[0].ndim, call.dim("dim")
    if rank > 1 and dim in (0, rank - 1) and call.arg("alpha") == 1 and call.tensor("index").dtype is torch.int64:
        return bounded(RuntimeError)(call)
    return tuple(replace(bound, words="index out of range in self") for bound in bounded(IndexError)(call))


def _copied_to(call: BoundCall) -> tuple[Bound, ...]:
    return tuple(replace(bound, words=f"index_copy_(): {bound.words}") for bound in bounded(IndexError)(call))


for _op in ops_named("index_add index_add_"):
    rules[_op] = _index_written(_added_to, adds=True)
for _op in ops_named("index_copy index_copy_"):
    rules[_op] = _index_written(_copied_to)
for _op in ops_named("index_fill.int_Scalar index_fill.int_Tensor index_fill_.int_Scalar index_fill_.int_Tensor"):
    rules[_op] = _index_written(bounded(IndexError, negative=True))


def _index_put(call: BoundCall) -> Factors | None:
    x, indices, values = call.tensor("self"), call.optional_list("indices"), call.tensor("values")
    if has_masks(indices) or len(indices) > x.ndim or 0 in x.shape:
        return None
    placed = Placed(x, indices)
    if values.ndim > len(placed.result):
        return None
    made = [placed.sizes[name] for (name,) in placed.result]
    if any(size not in (1, whole) for size, whole in zip(values.shape, made[len(made) - values.ndim :], strict=True)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape {made}"
        )
    inputs = (placed.table, *placed.index_dims(), broadcast_into(values.shape, placed.result, made))
    own = frozenset(name for (name,) in placed.own)
    return _written(inputs, placed.sizes, frozenset(), own, adds=call.flag("accumulate"))


def _local_index_put(call: BoundCall, given: Sequence[Region], _: Sequence[Region]) -> object:
    """The values that land here; each index says so, also of a dim that is whole."""
    x, indices = call.tensor("self"), call.optional_list("indices")
    if not split_indices(call, given[0]):
        return call()
    placed = Placed(x, indices)
    every = torch.broadcast_tensors(*placed.indices)
    inside = torch.ones(every[0].shape, dtype=torch.bool, device=x.device)
    own: dict[int, torch.Tensor] = {}
    for d, index in zip(placed.dims, every, strict=True):
        own[d], here = inside_of(given[0], d, index)
        inside = inside & here
    if not has_values(inside):
        return _put_all(call, own, inside)
    kept = [size for d, size in enumerate(x.shape) if d not in placed.dims]
    values = call.tensor("values").expand([*kept[: placed.at], *inside.shape, *kept[placed.at :]])
    ahead: list[slice | torch.Tensor] = [slice(None)] * placed.at
    found = [own[d][inside] if d in own else None for d in range(len(indices))]
    return call.replaced(indices=found, values=values[(*ahead, inside)])()


def _put_all(call: BoundCall, own: dict[int, torch.Tensor], inside: torch.Tensor) -> object:
    """The same where it cannot be seen which values land here."""
    x = call.tensor("self")
    if not x.numel():
        return x if call.func._schema.is_mutable else x.clone()
    first = min(own)
    elsewhere = {d: x.shape[d] if d == first else 0 for d in own}
    count = len(call.optional_list("indices"))
    found = [torch.where(inside, own[d], elsewhere[d]) if d in own else None for d in range(count)]
    return _cut_off(call.replaced(indices=found), first)


for _op in ops_named("index_put index_put_ _unsafe_index_put"):
    rules[_op] = Rule(_index_put, local=_local_index_put, looks_for=True, bounds=bounds_of_each)
