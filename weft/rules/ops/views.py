"""Ops that only rearrange dims: reshapes, permutations, added and removed dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from ..call import BoundCall
from ..dims import numbered, sizes_of
from ..factors import ALL_KINDS, SUMS, Dims, Factors
from ..registry import Region, Rule, rules, sized
from .slicing import touching

__all__ = ["common_cuts", "reshape_dims", "reshape_groups"]

aten = torch.ops.aten


def reshape_dims(before: Sequence[int], after: Sequence[int]) -> tuple[Dims, Dims, dict[str, int], frozenset[str]]:
    """The factors of a reshape: where both shapes cut the elements at common places, the pieces in between.

    >>> reshape_dims((6, 4), (2, 3, 4))[:2]
    ((('f0', 'f1'), ('f2',)), (('f0',), ('f1',), ('f2',)))
    >>> reshape_dims((1, 4), (1, 4, 1))[:2]  # a dim of size 1 that stays is one, and may be split
    ((('f0',), ('f1',)), (('f0',), ('f1',), ()))
    """
    left: list[tuple[str, ...]] = []
    right: list[tuple[str, ...]] = []
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    for first, second in reshape_groups(before, after):
        start = len(sizes)
        if len(first) == len(second) == 1:
            name = f"f{start}"
            sizes[name] = first[0]
            left.append((name,))
            right.append((name,))
            continue
        cuts = common_cuts(first, second)
        if cuts is None:
            name = f"f{start}"
            sizes[name] = math.prod(first)
            whole.add(name)
            left += [(name,)] + [()] * (len(first) - 1)
            right += [(name,)] + [()] * (len(second) - 1)
            continue
        names = []
        for k, size in enumerate(cuts):
            names.append((f"f{start + k}", size))
            sizes[f"f{start + k}"] = size
        left += _assigned(first, names)
        right += _assigned(second, names)
    return tuple(left), tuple(right), sizes, frozenset(whole)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Runs of dims with equal products, as short as possible."""
    if 0 in before or 0 in after:
        same = len(before) if tuple(before) == tuple(after) else 0
        # What stands beside the zero need not have equal products.
        while same < min(len(before), len(after)) and before[same] == after[same] != 0:
            same += 1
        rest = [(list(before[same:]), list(after[same:]))] if same < max(len(before), len(after)) else []
        return [([size], [size]) for size in before[:same]] + rest
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        first, second = list(before[i : i + 1]), list(after[j : j + 1])
        i, j = i + len(first), j + len(second)
        while math.prod(first) != math.prod(second):
            if math.prod(first) < math.prod(second):
                first.append(before[i])
                i += 1
            else:
                second.append(after[j])
                j += 1
        result.append((first, second))
    return result


def common_cuts(first: Sequence[int], second: Sequence[int]) -> list[int] | None:
    """The sizes of the factors that both runs are made of, or None when their cuts do not nest."""
    marks = [1]
    for run in (first, second):
        step = 1
        for size in reversed(run):
            step *= size
            if step not in marks:  # no set: sizes that a compiler has not settled have no hash
                marks.append(step)
    ordered = sorted(marks)
    if 0 in ordered or any(b % a for a, b in pairwise(ordered)):
        return None
    return [b // a for a, b in pairwise(ordered)][::-1]


def _assigned(run: Sequence[int], names: Sequence[tuple[str, int]]) -> list[tuple[str, ...]]:
    """Which factors each dim of a run is made of."""
    result = []
    left = list(names)
    for size in run:
        taken: list[str] = []
        product = 1
        while product != size:
            name, part = left.pop(0)
            taken.append(name)
            product *= part
        result.append(tuple(taken))
    return result


def _reshape(call: BoundCall) -> Factors:
    shape = call.tensors[0].shape
    size = call.integers("shape" if call.has("shape") else "size")
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size[size.index(-1)] = math.prod(shape) // rest if rest else 0
    if math.prod(size) != math.prod(shape):
        raise ValueError(f"shape {size} is invalid for input of size {math.prod(shape)}")
    left, right, sizes, whole = reshape_dims(shape, size)
    return Factors((left,), (right,), sizes, whole, linear=0, keeps=ALL_KINDS)


for _op in (aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default):
    rules[_op] = Rule(_reshape, sized("size"), local_op=aten.reshape.default)
rules[aten.reshape.default] = Rule(_reshape, sized("shape"), local_op=aten.reshape.default)


def _permute(call: BoundCall) -> Factors | None:
    dims, order = numbered(call.tensors[0].ndim), call.dims("dims")
    if sorted(order) != list(range(len(dims))):
        return None  # torch says what is wrong
    return touching(call, [], [[dims[dim] for dim in order]])


def _transpose(call: BoundCall) -> Factors:
    dims = numbered(call.tensors[0].ndim)
    a, b = (call.dim("dim0"), call.dim("dim1")) if call.has("dim0") else (0, -1)
    if dims:
        dims[a], dims[b] = dims[b], dims[a]
    return touching(call, [], [dims])


def _unsqueeze(call: BoundCall) -> Factors:
    dims = numbered(call.tensors[0].ndim)
    dims.insert(call.dim("dim", len(dims) + 1), ())
    return touching(call, [], [dims])


def _squeeze(call: BoundCall) -> Factors:
    x = call.tensors[0]
    named = call.dims("dim") if call.has("dim") else range(x.ndim)
    gone = [d for d in named if x.ndim and x.shape[d] == 1]
    return touching(call, gone, [[dim for d, dim in enumerate(numbered(x.ndim)) if d not in gone]])


def _local_squeeze(call: BoundCall, _inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """Only what has size 1 in the whole goes away, not what happens to have it here; where nothing goes, all strides stay."""
    x, shape = call.tensor("self"), outputs[0].shape
    return aten.alias.default(x) if x.dim() == len(shape) else x.view(shape)


def _view_dtype(call: BoundCall) -> Factors:
    x, dtype = call.tensors[0], call.dtype()
    output = numbered(x.ndim)
    if not x.ndim or dtype is None or dtype.itemsize == x.dtype.itemsize:  # of no dims, torch refuses others
        return replace(touching(call, [], [output]), linear="no")
    output[-1] = ()
    return replace(touching(call, [x.ndim - 1], [output]), linear="no")


def _view_as_real(call: BoundCall) -> Factors:
    # The parts of a product are not the products of the parts, and complex numbers have no largest.
    return touching(call, [], [[*numbered(call.tensors[0].ndim), ()]], SUMS)


def _view_as_complex(call: BoundCall) -> Factors:
    last = call.tensors[0].ndim - 1
    return touching(call, [last], [numbered(last)], SUMS)


def _local_view_as_complex(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    return _of_elements(call, outputs, call.tensor("self").dtype.to_complex())


def _local_view_dtype(call: BoundCall, inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    return _of_elements(call, outputs, call.dtype())


def _of_elements(call: BoundCall, outputs: Sequence[Region], dtype: torch.dtype | None) -> object:
    """Torch asks how one number lies, and how none do: a device that has none is not to ask, as it knows no strides of the whole."""
    x = call.tensor("self")
    if x.numel() and x.dim() and x.stride(-1) != 1 and dtype is not None and dtype.itemsize != x.dtype.itemsize:
        x = x.contiguous()  # of elements that are one, the dims may stand in any order, and what shows them is a copy
    if x.numel():
        return call.on([x])
    return x.new_empty(outputs[0].shape, dtype=dtype)


def _expand(call: BoundCall) -> Factors:
    x, size = call.tensors[0], call.integers("size")
    new = len(size) - x.ndim
    kept = [
        dim if after in (-1, before) else ()
        for dim, before, after in zip(numbered(x.ndim), x.shape, size[new:], strict=True)
    ]
    return Factors((tuple(kept),), ((*[()] * new, *kept),), sizes_of(x.shape), linear=0, keeps=ALL_KINDS)


rules |= {
    aten.permute.default: Rule(_permute),
    aten.transpose.int: Rule(_transpose),
    aten.t.default: Rule(_transpose),
    aten.unsqueeze.default: Rule(_unsqueeze),
    aten.squeeze.default: Rule(_squeeze, local=_local_squeeze),
    aten.squeeze.dim: Rule(_squeeze, local=_local_squeeze),
    aten.squeeze.dims: Rule(_squeeze, local=_local_squeeze),
    aten.view.dtype: Rule(_view_dtype, local=_local_view_dtype),
    aten.view_as_real.default: Rule(_view_as_real),
    aten.view_as_complex.default: Rule(_view_as_complex, local=_local_view_as_complex),
    aten.expand.default: Rule(_expand, sized("size")),
}
