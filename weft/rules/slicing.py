"""Ops that take, place or repeat elements along some dims: those dims are whole, the others are as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules

__all__ = ["along", "local_sizes", "named", "touching"]

aten = torch.ops.aten
_ALL_KINDS = frozenset(ReduceOp)
_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})


def named(rank: int) -> list[tuple[str, ...]]:
    """One factor per dim."""
    return [(f"d{i}",) for i in range(rank)]


def along(dim: object, rank: int) -> int:
    """A dim as a number from 0; 0 for a tensor without dims."""
    return cast(int, dim) % rank if rank else 0


def touching(
    call: BoundCall,
    touched: Sequence[int],
    outputs: Sequence[Sequence[tuple[str, ...]]],
    keeps: frozenset[ReduceOp] = _ALL_KINDS,
) -> Factors:
    """The factors of an op on one tensor that needs some dims whole and lets pending reductions pass."""
    spec = call.tensors[0]
    inputs: list[tuple[str, ...]] = named(spec.ndim)
    sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
    whole = frozenset(f"d{i}" for i in touched)
    outs: tuple[Dims, ...] = tuple(map(tuple, outputs))
    return Factors((tuple(inputs),), outs, sizes, whole, linear=0, keeps=keeps)


def _one_dim(*, gone: bool = False, name: str = "dim", keeps: frozenset[ReduceOp] = _ALL_KINDS) -> Rule:
    """An op along one dim, which it removes or gives another size."""

    def factors(call: BoundCall) -> Factors:
        rank = call.tensors[0].ndim
        dim = along(call.arg(name), rank)
        output = named(rank)
        output[dim : dim + 1] = [] if gone or not rank else [()]
        return touching(call, [dim], [output], keeps)

    return Rule(factors)


def _slice(call: BoundCall) -> Factors:
    spec = call.tensors[0]
    dim = along(call.arg("dim"), spec.ndim)
    first, last, _ = slice(cast("int | None", call.arg("start")), cast("int | None", call.arg("end"))).indices(
        spec.shape[dim]
    )
    output = named(spec.ndim)
    if (first, last, call.arg("step")) == (0, spec.shape[dim], 1):
        return touching(call, [], [output])
    output[dim] = ()
    return touching(call, [dim], [output])


def _unfold(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim
    dim = along(call.args[1], rank)
    output = named(rank)
    output[dim : dim + 1] = [()] if rank else []
    return touching(call, [dim] if rank else [], [[*output, ()]])


def _several(count: Callable[[BoundCall, int], int], *, gone: bool = False) -> Rule:
    """An op that gives the parts of a dim."""

    def factors(call: BoundCall) -> Factors:
        rank = call.tensors[0].ndim
        dim = along(call.arg("dim"), rank)
        output = named(rank)
        output[dim : dim + 1] = [] if gone else [()]
        return touching(call, [dim], [output] * count(call, dim))

    return Rule(factors)


def _parts(call: BoundCall, dim: int) -> int:
    size = call.tensors[0].shape[dim]
    given = call.args[1]
    if isinstance(given, (list, tuple)):
        return len(given)
    return max(1, -(-size // cast(int, given))) if given else 1


rules |= {
    aten.slice.Tensor: Rule(_slice),
    aten.select.int: _one_dim(gone=True),
    aten.unfold.default: Rule(_unfold),
    aten.unbind.int: _several(lambda call, dim: call.tensors[0].shape[dim], gone=True),
}
for _op in (
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
):
    rules[_op] = _several(_parts)


def local_sizes(position: int) -> Callable[..., tuple[tuple[object, ...], dict[str, object]]]:
    """The sizes of the result that stand at a position of the arguments, as one device needs them."""

    def local(
        call: BoundCall, _: Sequence[tuple[int, ...]], out: Sequence[tuple[int, ...]]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return (*call.args[:position], list(out[0]), *call.args[position + 1 :]), call.kwargs

    return local


def _placed_back(name: str, *, is_new: bool) -> Rule:
    """The gradient of taking part of a dim (or, new, one index of it): zeros around it."""

    def factors(call: BoundCall) -> Factors:
        rank = len(cast("Sequence[int]", call.args[1]))
        dim = along(call.arg(name), rank)
        output = named(call.tensors[0].ndim)
        if is_new:
            output.insert(dim, ())
            return touching(call, [], [output], _SUMS)
        if call.tensors[0].shape[dim] == cast("Sequence[int]", call.args[1])[dim]:
            return touching(call, [], [output], _SUMS)
        output[dim] = ()
        return touching(call, [dim], [output], _SUMS)

    return Rule(factors, local_sizes(1))


def _unfold_backward(call: BoundCall) -> Factors:
    rank = len(cast("Sequence[int]", call.args[1]))
    dim = along(call.args[2], rank)
    output = named(rank)
    output[dim : dim + 1] = [()] if rank else []
    return touching(call, [dim, rank], [output], _SUMS)


rules |= {
    aten.slice_backward.default: _placed_back("dim", is_new=False),
    aten.select_backward.default: _placed_back("dim", is_new=True),
    aten.unfold_backward.default: Rule(_unfold_backward, local_sizes(1)),
}


def _scattered(*, is_new: bool) -> Rule:
    """A tensor with part of a dim (or, new, one index of it) taken from another."""

    def factors(call: BoundCall) -> Factors | None:
        spec = call.tensors[0]
        dim = along(call.arg("dim"), spec.ndim)
        shape = list(spec.shape)
        if is_new:
            del shape[dim : dim + 1]
        elif shape:
            part = slice(*(cast("int | None", call.arg(name)) for name in ("start", "end", "step")))
            shape[dim] = len(range(shape[dim])[part])
        if tuple(shape) != call.tensors[1].shape:
            return None  # torch refuses it
        whole = named(spec.ndim)
        given = [d for i, d in enumerate(whole) if i != dim] if is_new else list(whole)
        if not is_new:
            given[dim] = ("part",)
        output = list(whole)
        sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
        if not is_new:
            sizes["part"] = call.tensors[1].shape[dim]
        return Factors(
            (tuple(whole), tuple(given)),
            (tuple(output),),
            sizes,
            frozenset({f"d{dim}", "part"}),
            reduces=None,
            linear="all",
            keeps=_SUMS,
        )

    return Rule(factors)


rules |= {
    aten.slice_scatter.default: _scattered(is_new=False),
    aten.select_scatter.default: _scattered(is_new=True),
}


def _dims_whole(call: BoundCall, dims: Sequence[int], keeps: frozenset[ReduceOp] = _ALL_KINDS) -> Factors:
    """An op that changes along some dims and nowhere else."""
    output = [() if i in dims else d for i, d in enumerate(named(call.tensors[0].ndim))]
    return touching(call, dims, [output], keeps)


def _listed(call: BoundCall, name: str) -> list[int]:
    rank = call.tensors[0].ndim
    given = call.arg(name)
    return [along(dim, rank) for dim in cast("Sequence[int]", given if isinstance(given, (list, tuple)) else [given])]


def _roll(call: BoundCall) -> Factors:
    dims = _listed(call, "dims") or list(range(call.tensors[0].ndim))
    return _dims_whole(call, dims)


def _rot90(call: BoundCall) -> Factors:
    dims = _listed(call, "dims")
    return _dims_whole(call, dims)


def _pad(call: BoundCall) -> Factors:
    pad = cast("Sequence[int]", call.args[1])
    rank = call.tensors[0].ndim
    dims = [rank - 1 - i // 2 for i in range(len(pad)) if pad[i]]
    return _dims_whole(call, sorted(set(dims)))


def _repeat(call: BoundCall) -> Factors:
    repeats = cast("Sequence[int]", call.args[1])
    rank = call.tensors[0].ndim
    new = len(repeats) - rank
    dims = [i for i in range(rank) if repeats[new + i] != 1]
    kept = [() if i in dims else d for i, d in enumerate(named(rank))]
    return touching(call, dims, [[()] * new + kept])


def _last_dims(count: int) -> Rule:
    """An op on the last dims, whose other tensors (a gradient first) are laid out alike."""

    def factors(call: BoundCall) -> Factors:
        spec = call.tensors[0]
        dims = range(spec.ndim - count, spec.ndim)
        output = tuple(() if i in dims else d for i, d in enumerate(named(spec.ndim)))
        inputs = tuple(
            tuple((f"t{k}_{i}",) if i in dims else (f"d{i}",) for i in range(each.ndim))
            for k, each in enumerate(call.tensors)
        )
        sizes = {
            name: size
            for dims_, each in zip(inputs, call.tensors, strict=True)
            for (name,), size in zip(dims_, each.shape, strict=True)
        }
        whole = frozenset(name for name in sizes if name.startswith("t"))
        return Factors(inputs, (output,), sizes, whole, reduces=None, linear=0, keeps=_SUMS)

    return Rule(factors, local=_local_of_last_dims)


def _local_of_last_dims(call: BoundCall, _: Sequence[Region], made: Sequence[Region]) -> object:
    """Torch refuses to pad where there are no rows."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(torch.Tensor, args[0])
    return func(*args, **kwargs) if x.numel() else x.new_zeros(made[0].shape)


rules |= {
    aten.flip.default: Rule(lambda call: _dims_whole(call, _listed(call, "dims"))),
    aten.roll.default: Rule(_roll),
    aten.rot90.default: Rule(_rot90),
    aten.constant_pad_nd.default: Rule(_pad),
    aten.repeat.default: Rule(_repeat),
}
for _count in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        rules[getattr(aten, f"{_kind}_pad{_count}d").default] = _last_dims(_count)
        rules[getattr(aten, f"{_kind}_pad{_count}d_backward").default] = _last_dims(_count)
