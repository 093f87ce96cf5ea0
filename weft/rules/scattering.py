"""Writes by index: a tensor that is split along what is written to takes only what lands on each part of it.

index_add      v d, i, i d -> v d      i is split: a pending sum, to which x is added once
scatter_add    v d, i d, i d -> v d
index_put      as the lookup x[indices], with `accumulate`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from .call import BoundCall
from .factors import Factors
from .indexing import Placed, bounded, bounds_of_each, placed_dims
from .registry import Region, Rule, rules
from .slicing import along, named

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


def _scatter(*, adds: bool) -> Rule:
    """x, dim, index and a source or a value; without adding, the order of writes matters, so the index is whole."""

    def factors(call: BoundCall) -> Factors | None:
        x = call.tensors[0]
        if not x.ndim or 0 in x.shape or any(spec.ndim != x.ndim for spec in call.tensors):
            return None
        inputs, sizes, whole = placed_dims([spec.shape for spec in call.tensors], along(call.args[1], x.ndim))
        if not adds:
            return Factors(inputs, (inputs[0],), sizes, whole | {"i"}, reduces=None)
        return Factors(inputs, (inputs[0],), sizes, whole, linear=2, added=frozenset({0}))

    return Rule(factors, local=_local_scatter, bounds=bounded(RuntimeError))


def _local_scatter(call: BoundCall, given: Sequence[Region], _: Sequence[Region]) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, index = cast(torch.Tensor, args[0]), cast(torch.Tensor, args[2])
    dim = along(args[1], x.dim())
    if given[0].is_whole(dim):
        return func(*args, **kwargs)
    start, stop = given[0].box[dim]
    inside = (index >= start) & (index < stop)
    # What lands elsewhere is written to one index more, which is cut off again.
    local = torch.where(inside, index - start, stop - start)
    more = torch.cat([x, x.new_zeros([1 if d == dim else s for d, s in enumerate(x.shape)])], dim)
    result = cast(torch.Tensor, func(more, dim, local, *args[3:], **kwargs)).narrow(dim, 0, stop - start)
    return x.copy_(result) if func._schema.is_mutable else result


for _name in ("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_reduce.two"):
    _packet, _, _overload = _name.partition(".")
    rules[getattr(getattr(aten, _packet), _overload)] = _scatter(adds=False)
    rules[getattr(getattr(aten, f"{_packet}_"), _overload)] = _scatter(adds=False)
rules[aten.scatter_add.default] = rules[aten.scatter_add_.default] = _scatter(adds=True)


def _index_written(error: type[Exception], *, adds: bool = False, negative: bool = False) -> Rule:
    """x, dim, a 1-d index, and a source or a value; what torch raises for an index out of range, and if it may be negative."""

    def factors(call: BoundCall) -> Factors | None:
        x, index = call.tensors[:2]
        dim = along(call.args[1], x.ndim)
        if not x.ndim or index.ndim != 1 or 0 in x.shape:
            return None
        table = named(x.ndim)
        source = list(table)
        source[dim] = ("i",)
        sizes = {f"d{i}": size for i, size in enumerate(x.shape)} | {"i": index.shape[0]}
        inputs = [tuple(table), (("i",),)]
        if len(call.tensors) > 2:
            spec = call.tensors[2]
            if spec.ndim not in (0, x.ndim):
                return None
            inputs.append(tuple(source) if spec.ndim else ())
        if not adds:
            return Factors(tuple(inputs), (tuple(table),), sizes, frozenset({"i"}), reduces=None)
        return Factors(tuple(inputs), (tuple(table),), sizes, linear=2, added=frozenset({0}))

    return Rule(factors, local=_local_index_written, bounds=bounded(error, negative=negative))


def _local_index_written(call: BoundCall, given: Sequence[Region], _: Sequence[Region]) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, index = cast(torch.Tensor, args[0]), cast(torch.Tensor, args[2])
    dim = along(args[1], x.dim())
    if given[0].is_whole(dim):
        return func(*args, **kwargs)
    start, stop = given[0].box[dim]
    index = torch.where(index < 0, index + given[0].whole[dim], index)
    here = ((index >= start) & (index < stop)).nonzero().squeeze(1)
    rest = list(args[3:])
    if rest and isinstance(rest[0], torch.Tensor) and rest[0].dim():
        rest[0] = rest[0].index_select(dim, here)
    return func(x, dim, index.index_select(0, here) - start, *rest, **kwargs)


rules[aten.index_add.default] = rules[aten.index_add_.default] = _index_written(RuntimeError, adds=True)
rules[aten.index_copy.default] = rules[aten.index_copy_.default] = _index_written(IndexError)
for _overload in ("int_Scalar", "int_Tensor"):
    rules[getattr(aten.index_fill, _overload)] = _index_written(IndexError, negative=True)
    rules[getattr(aten.index_fill_, _overload)] = _index_written(IndexError, negative=True)


def _index_put(call: BoundCall) -> Factors | None:
    x, values = call.tensors[0], call.tensors[-1]
    indices = [each if isinstance(each, torch.Tensor) else None for each in cast("Sequence[object]", call.args[1])]
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return None
    if len(indices) > x.ndim or 0 in x.shape:
        return None
    placed = Placed(x, indices)
    if values.ndim > len(placed.result):
        return None
    offset = len(placed.result) - values.ndim
    made = [placed.sizes[name] for (name,) in placed.result]
    if any(size not in (1, whole) for size, whole in zip(values.shape, made[offset:], strict=True)):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape {made}"
        )
    given = tuple(
        () if size == 1 and placed.sizes[placed.result[offset + k][0]] != 1 else placed.result[offset + k]
        for k, size in enumerate(values.shape)
    )
    inputs = (tuple(placed.table), *placed.index_dims(), given)
    own = frozenset(name for (name,) in placed.own)
    if not call.arg("accumulate", False):
        return Factors(inputs, (tuple(placed.table),), placed.sizes, own, reduces=None)
    return Factors(inputs, (tuple(placed.table),), placed.sizes, linear=len(inputs) - 1, added=frozenset({0}))


def _local_index_put(call: BoundCall, given: Sequence[Region], _: Sequence[Region]) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x, values = cast("tuple[torch.Tensor, torch.Tensor]", (args[0], args[2]))
    indices = list(cast("Sequence[torch.Tensor | None]", args[1]))
    cut = [d for d, index in enumerate(indices) if index is not None and not given[0].is_whole(d)]
    if not cut:
        return func(*args, **kwargs)
    taken = [d for d, index in enumerate(indices) if index is not None]
    every = torch.broadcast_tensors(*(index for index in indices if index is not None))
    inside = torch.ones(every[0].shape, dtype=torch.bool, device=x.device)
    local = []
    for d, index in zip(taken, every, strict=True):
        start, stop = given[0].box[d]
        index = torch.where(index < 0, index + given[0].whole[d], index)
        inside = inside & (index >= start) & (index < stop)
        local.append(index - start)
    placed = Placed(x, indices)
    kept = [size for d, size in enumerate(x.shape) if d not in taken]
    before = placed.at
    values = values.expand([*kept[:before], *inside.shape, *kept[before:]])
    place: list[slice | torch.Tensor] = [*[slice(None)] * before, inside]
    values = values[tuple(place)]
    for d, index in zip(taken, local, strict=True):
        indices[d] = index[inside]
    return func(x, indices, values, *args[3:], **kwargs)


for _op in (aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default):
    rules[_op] = Rule(_index_put, local=_local_index_put, bounds=bounds_of_each)
