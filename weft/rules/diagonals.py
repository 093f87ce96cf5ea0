"""Diagonals and triangles: a diagonal needs its two dims whole; a triangle knows where its part of the whole begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .call import BoundCall
from .factors import Factors
from .registry import Region, Rule, rules
from .slicing import along, local_sizes, named, touching

aten = torch.ops.aten
_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})


def _diagonal(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim
    dims = [along(call.arg("dim1"), rank), along(call.arg("dim2"), rank)]
    kept = [d for i, d in enumerate(named(rank)) if i not in dims]
    return touching(call, dims, [[*kept, ()]])


def _diagonal_backward(call: BoundCall) -> Factors:
    rank = len(cast("Sequence[int]", call.args[1]))
    first, second = sorted(along(call.arg(name), rank) for name in ("dim1", "dim2"))
    output = named(rank - 2)
    output.insert(first, ())
    output.insert(second, ())
    return touching(call, [rank - 2], [output], _SUMS)


def _diag_embed(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim + 1
    first, second = sorted(along(call.arg(name), rank) for name in ("dim1", "dim2"))
    output = named(rank - 2)
    output.insert(first, ())
    output.insert(second, ())
    return touching(call, [rank - 2], [output], _SUMS)


rules |= {
    aten.diagonal.default: Rule(_diagonal),
    aten.diagonal_backward.default: Rule(_diagonal_backward, local_sizes(1)),
    aten.diag_embed.default: Rule(_diag_embed),
}


def _triangle(call: BoundCall) -> Factors:
    return touching(call, [], [named(call.tensors[0].ndim)], _SUMS)


def _local_triangle(call: BoundCall, regions: Sequence[Region], _: Sequence[Region]) -> object:
    """On a box, the diagonal is further right by as much as the box begins further down than right."""
    func, args, kwargs = call.func, call.args, call.kwargs
    diagonal = cast(int, args[1] if len(args) > 1 else kwargs.get("diagonal", 0))
    down, right = regions[0].box[-2][0], regions[0].box[-1][0]
    return func(args[0], diagonal + down - right)


for _op in (aten.tril.default, aten.triu.default, aten.tril_.default, aten.triu_.default):
    rules[_op] = Rule(_triangle, local=_local_triangle)
