"""Ops that only rearrange dims: reshapes, permutations, added and removed dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .call import BoundCall
from .factors import Dims, Factors
from .registry import Region, Rule, rules

__all__ = ["common_cuts", "reshape_dims", "reshape_groups"]

aten = torch.ops.aten
_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})
_ALL_KINDS = frozenset(ReduceOp)


def reshape_dims(before: Sequence[int], after: Sequence[int]) -> tuple[Dims, Dims, dict[str, int], frozenset[str]]:
    """The factors of a reshape: where both shapes cut the elements at common places, the pieces in between.

    >>> reshape_dims((6, 4), (2, 3, 4))[:2]
    ((('f0', 'f1'), ('f2',)), (('f0',), ('f1',), ('f2',)))
    """
    left: list[tuple[str, ...]] = []
    right: list[tuple[str, ...]] = []
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    for first, second in reshape_groups(before, after):
        cuts = common_cuts(first, second)
        start = len(sizes)
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
    marks = {1}
    for run in (first, second):
        step = 1
        for size in reversed(run):
            step *= size
            marks.add(step)
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
    size = [int(s) for s in cast("Sequence[int]", call.args[1])]
    if -1 in size:
        rest = math.prod(s for s in size if s != -1)
        size[size.index(-1)] = math.prod(shape) // rest if rest else 0
    left, right, sizes, whole = reshape_dims(shape, size)
    return Factors((left,), (right,), sizes, whole, linear=0, keeps=_ALL_KINDS)


def _local_size(
    call: BoundCall, _: Sequence[tuple[int, ...]], out: Sequence[tuple[int, ...]]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return (call.args[0], list(out[0]), *call.args[2:]), call.kwargs


for _op in (aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default):
    rules[_op] = Rule(_reshape, _local_size, local_op=aten.reshape.default)


def _numbered(rank: int) -> list[tuple[str, ...]]:
    return [(f"d{i}",) for i in range(rank)]


def _renamed(call: BoundCall, output: Sequence[tuple[str, ...]]) -> Factors:
    spec = call.tensors[0]
    sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
    return Factors((tuple(_numbered(spec.ndim)),), (tuple(output),), sizes, linear=0, keeps=_ALL_KINDS)


def _dim(value: object, rank: int) -> int:
    return cast(int, value) % rank if rank else 0


def _permute(call: BoundCall) -> Factors | None:
    rank = call.tensors[0].ndim
    dims = _numbered(rank)
    output = [dims[_dim(d, rank)] for d in cast("Sequence[int]", call.args[1])]
    return _renamed(call, output) if sorted(output) == sorted(dims) else None


def _transpose(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim
    dims = _numbered(rank)
    a, b = (_dim(call.args[1], rank), _dim(call.args[2], rank)) if len(call.args) > 1 else (0, rank - 1)
    if rank:
        dims[a], dims[b] = dims[b], dims[a]
    return _renamed(call, dims)


def _unsqueeze(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim
    dims = _numbered(rank)
    dims.insert(_dim(call.args[1], rank + 1), ())
    return _renamed(call, dims)


def _squeeze(call: BoundCall) -> Factors:
    spec = call.tensors[0]
    named = call.args[1] if len(call.args) > 1 else range(spec.ndim)
    wanted = {
        _dim(d, spec.ndim)
        for d in (cast("Sequence[int]", named) if isinstance(named, (list, tuple, range)) else [named])
    }
    gone = {d for d in wanted if d < spec.ndim and spec.shape[d] == 1}
    whole = frozenset(f"d{d}" for d in gone)
    kept = [dim for d, dim in enumerate(_numbered(spec.ndim)) if d not in gone]
    plain = _renamed(call, kept)
    return Factors(plain.inputs, plain.outputs, plain.sizes, whole, linear=0, keeps=_ALL_KINDS)


def _local_squeeze(call: BoundCall, _inputs: Sequence[Region], outputs: Sequence[Region]) -> object:
    """Only what has size 1 in the whole goes away, not what happens to have it here."""
    args = call.args
    return cast(torch.Tensor, args[0]).view(outputs[0].shape)


def _view_dtype(call: BoundCall) -> Factors:
    spec = call.tensors[0]
    dims = _numbered(spec.ndim)
    sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
    whole: frozenset[str] = frozenset()
    output = list(dims)
    if spec.ndim and cast(torch.dtype, call.args[1]).itemsize != spec.dtype.itemsize:  # of no dims, torch refuses it
        whole, output[-1] = frozenset({f"d{spec.ndim - 1}"}), ()
    return Factors((tuple(dims),), (tuple(output),), sizes, whole)


def _view_as_real(call: BoundCall) -> Factors:
    # The parts of a product are not the products of the parts, and complex numbers have no largest.
    return replace(_renamed(call, [*_numbered(call.tensors[0].ndim), ()]), keeps=_SUMS)


def _view_as_complex(call: BoundCall) -> Factors:
    spec = call.tensors[0]
    plain = _renamed(call, _numbered(spec.ndim)[:-1])
    return replace(plain, whole=frozenset({f"d{spec.ndim - 1}"}), keeps=_SUMS)


def _expand(call: BoundCall) -> Factors:
    spec = call.tensors[0]
    size = [int(s) for s in cast("Sequence[int]", call.args[1])]
    new = len(size) - spec.ndim
    output: list[tuple[str, ...]] = [()] * new
    inputs: list[tuple[str, ...]] = []
    for d, (before, after) in enumerate(zip(spec.shape, size[new:], strict=True)):
        kept = after in (-1, before)
        inputs.append((f"d{d}",) if kept else ())
        output.append((f"d{d}",) if kept else ())
    sizes = {f"d{d}": s for d, s in enumerate(spec.shape) if inputs[d]}
    return Factors((tuple(inputs),), (tuple(output),), sizes, linear=0, keeps=_ALL_KINDS)


rules |= {
    aten.permute.default: Rule(_permute),
    aten.transpose.int: Rule(_transpose),
    aten.t.default: Rule(_transpose),
    aten.unsqueeze.default: Rule(_unsqueeze),
    aten.squeeze.default: Rule(_squeeze, local=_local_squeeze),
    aten.squeeze.dim: Rule(_squeeze, local=_local_squeeze),
    aten.squeeze.dims: Rule(_squeeze, local=_local_squeeze),
    aten.view.dtype: Rule(_view_dtype),
    aten.view_as_real.default: Rule(_view_as_real),
    aten.view_as_complex.default: Rule(_view_as_complex),
    aten.expand.default: Rule(_expand, _local_size),
}
