"""Ops that take, place or repeat elements along some dims: those dims are whole, the others are as they were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

import torch

from ...sharding.placements import ReduceOp
from ..call import BoundCall
from ..dims import numbered, sizes_of
from ..factors import ALL_KINDS, SUMS, Factors
from ..registry import Region, Rule, ops_named, rules, sized

__all__ = ["slice_bounds", "touching"]

aten = torch.ops.aten


def touching(
    call: BoundCall,
    touched: Iterable[int],
    outputs: Sequence[Sequence[tuple[str, ...]]],
    keeps: frozenset[ReduceOp] = ALL_KINDS,
) -> Factors:
    """The factors of an op on one tensor that needs some dims whole and lets pending reductions pass."""
    x = call.tensors[0]
    whole = frozenset(f"d{i}" for i in touched)
    outs = tuple(map(tuple, outputs))
    return Factors((tuple(numbered(x.ndim)),), outs, sizes_of(x.shape), whole, linear=0, keeps=keeps)


def _select(call: BoundCall) -> Factors:
    dim, output = call.dim("dim"), numbered(call.tensors[0].ndim)
    return touching(call, [dim], [output[:dim] + output[dim + 1 :]])


def slice_bounds(call: BoundCall, size: int) -> tuple[int, int, int]:
    """The first index, the step and the number of indices of a slice, cut to the dim as torch does."""
    start, stop = (None if call.arg(name) is None else call.integer(name) for name in ("start", "end"))
    first, last = _within(start, size, 0), _within(stop, size, size)
    step = call.integer("step")
    return first, step, max(0, -(-(last - first) // step))


def _within(index: int | None, size: int, default: int) -> int:
    """An index cut to a dim: by comparing, since Python's own account of slices would settle a size that a compiler leaves open."""
    if index is None:
        return default
    if (type(index) is int and index == sys.maxsize) or index >= size:  # as `x[:, 1:]` says that it takes all of a dim
        return size
    return index if index >= 0 else max(index + size, 0)


def _slice(call: BoundCall) -> Factors:
    x, dim = call.tensors[0], call.dim("dim")
    output = numbered(x.ndim)
    if call.integer("step") == 1 and slice_bounds(call, x.shape[dim])[2] == x.shape[dim]:
        return touching(call, [], [output])
    output[dim] = ()
    return touching(call, [dim], [output])


def _unfold(call: BoundCall) -> Factors:
    dim, output = call.dim("dimension"), numbered(call.tensors[0].ndim)
    output[dim : dim + 1] = [()] if output else []
    return touching(call, [dim] if output else [], [[*output, ()]])


def _several(count: Callable[[BoundCall, int], int], *, gone: bool = False) -> Rule:
    """An op that gives the parts of a dim."""

    def factors(call: BoundCall) -> Factors:
        dim, output = call.dim("dim"), numbered(call.tensors[0].ndim)
        if not output:
            raise ValueError("one number has no dim that has parts")
        output[dim : dim + 1] = [] if gone else [()]
        return touching(call, [dim], [output] * count(call, call.tensors[0].shape[dim]))

    return Rule(factors)


def _parts(call: BoundCall, size: int) -> int:
    if call.has("split_sizes"):
        return len(call.integers("split_sizes"))
    most = call.integer("split_size")
    return max(1, -(-size // most)) if most else 1


rules |= {
    aten.slice.Tensor: Rule(_slice),
    aten.select.int: Rule(_select),
    aten.unfold.default: Rule(_unfold),
    aten.unbind.int: _several(lambda _, size: size, gone=True),
    aten.split.Tensor: _several(_parts),
    aten.split_with_sizes.default: _several(_parts),
}


def _placed_back(call: BoundCall) -> Factors:
    """The gradient of taking one index of a dim: zeros around it."""
    output = numbered(call.tensors[0].ndim)
    output.insert(call.dim("dim", len(output) + 1), ())
    return touching(call, [], [output], SUMS)


def _part_placed_back(call: BoundCall) -> Factors:
    """The gradient of taking part of a dim: zeros around it."""
    grad, dim = call.tensors[0], call.dim("dim")
    output = numbered(grad.ndim)
    if grad.shape[dim] == call.integers("input_sizes")[dim]:
        return touching(call, [], [output], SUMS)
    output[dim] = ()
    return touching(call, [dim], [output], SUMS)


def _unfold_backward(call: BoundCall) -> Factors:
    output = numbered(len(call.integers("input_sizes")))
    dim = call.dim("dim", len(output))
    output[dim : dim + 1] = [()] if output else []
    return touching(call, [dim, len(output)], [output], SUMS)


rules |= {
    aten.slice_backward.default: Rule(_part_placed_back, sized("input_sizes")),
    aten.select_backward.default: Rule(_placed_back, sized("input_sizes")),
    aten.unfold_backward.default: Rule(_unfold_backward, sized("input_sizes")),
}


def _scattered(*, is_new: bool) -> Rule:
    """A tensor with part of a dim (or, new, one index of it) taken from another."""

    def factors(call: BoundCall) -> Factors | None:
        (x, source), dim = call.tensors, call.dim("dim")
        shape = list(x.shape)
        if is_new:
            del shape[dim : dim + 1]
        elif shape:
            part = slice(*(call.optional_integer(name) for name in ("start", "end", "step")))
            shape[dim] = len(range(shape[dim])[part])
        if tuple(shape) != source.shape:
            return None  # torch refuses it
        whole = tuple(numbered(x.ndim))
        given = (*whole[:dim], *([] if is_new else [("part",)]), *whole[dim + 1 :])
        sizes = sizes_of(x.shape) | ({} if is_new else {"part": source.shape[dim]})
        touched = frozenset({f"d{dim}", "part"})
        return Factors((whole, given), (whole,), sizes, touched, reduces=None, linear="all")

    return Rule(factors)


rules |= {
    aten.slice_scatter.default: _scattered(is_new=False),
    aten.select_scatter.default: _scattered(is_new=True),
}


def _dims_whole(call: BoundCall, dims: Sequence[int]) -> Factors:
    """An op that changes along some dims and nowhere else."""
    output = [() if i in dims else dim for i, dim in enumerate(numbered(call.tensors[0].ndim))]
    return touching(call, dims, [output])


def _rot90(call: BoundCall) -> Factors | None:
    return None if call.tensors[0].ndim < 2 else _dims_whole(call, call.dims("dims"))  # torch refuses it


def _pad(call: BoundCall) -> Factors:
    last = call.tensors[0].ndim - 1
    return _dims_whole(call, [last - i // 2 for i, count in enumerate(call.integers("pad")) if count])


def _repeat(call: BoundCall) -> Factors:
    repeats, rank = call.integers("repeats"), call.tensors[0].ndim
    new = len(repeats) - rank
    dims = [i for i in range(rank) if repeats[new + i] != 1]
    kept = [() if i in dims else dim for i, dim in enumerate(numbered(rank))]
    return touching(call, dims, [[()] * new + kept])


def _last_dims(count: int) -> Rule:
    """An op on the last dims, whose other tensors (a gradient first) are laid out alike."""

    def factors(call: BoundCall) -> Factors:
        rank = call.tensors[0].ndim
        dims = range(rank - count, rank)
        output = tuple(() if i in dims else dim for i, dim in enumerate(numbered(rank)))
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
        return Factors(inputs, (output,), sizes, whole, reduces=None, linear=0)

    return Rule(factors, local=_local_of_last_dims)


def _local_of_last_dims(call: BoundCall, _: Sequence[Region], made: Sequence[Region]) -> object:
    """Torch refuses to pad where there are no rows."""
    x = call.tensors[0]
    return call() if x.numel() else x.new_zeros(made[0].shape)


rules |= {
    aten.flip.default: Rule(lambda call: _dims_whole(call, call.dims("dims"))),
    aten.roll.default: Rule(lambda call: _dims_whole(call, call.dims("dims") or range(call.tensors[0].ndim))),
    aten.rot90.default: Rule(_rot90),
    aten.constant_pad_nd.default: Rule(_pad),
    aten.repeat.default: Rule(_repeat),
}
for _count in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        for _op in ops_named(f"{_kind}_pad{_count}d {_kind}_pad{_count}d_backward"):
            rules[_op] = _last_dims(_count)
