"""Diagonals and triangles: a diagonal needs its two dims whole; a triangle knows where its part of the whole begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..call import BoundCall
from ..dims import numbered
from ..factors import SUMS, Factors
from ..registry import Region, Rule, ops_named, rules, sized
from .slicing import touching

aten = torch.ops.aten


def _diagonal(call: BoundCall) -> Factors:
    dims = [call.dim("dim1"), call.dim("dim2")]
    kept = [dim for i, dim in enumerate(numbered(call.tensors[0].ndim)) if i not in dims]
    return touching(call, dims, [[*kept, ()]])


def _embedded(call: BoundCall) -> Factors:
    """A tensor with its last dim on the diagonal of two: also the gradient of a diagonal."""
    last = call.tensors[0].ndim - 1
    output = numbered(last)
    for dim in sorted(call.dim(name, last + 2) for name in ("dim1", "dim2")):
        output.insert(dim, ())
    return touching(call, [last], [output], SUMS)


rules |= {
    aten.diagonal.default: Rule(_diagonal),
    aten.diagonal_backward.default: Rule(_embedded, sized("input_sizes")),
    aten.diag_embed.default: Rule(_embedded),
}


def _triangle(call: BoundCall) -> Factors:
    return touching(call, [], [numbered(call.tensors[0].ndim)], SUMS)


def _local_triangle(call: BoundCall, regions: Sequence[Region], _: Sequence[Region]) -> object:
    """On a box, the diagonal is further right by as much as the box begins further down than right."""
    down, right = regions[0].box[-2][0], regions[0].box[-1][0]
    return call.replaced(diagonal=call.integer("diagonal") + down - right)()


for _op in ops_named("tril triu tril_ triu_"):
    rules[_op] = Rule(_triangle, local=_local_triangle, counts_along=(-2, -1))
