"""Joining along a dim: that dim is whole, the others may be split alike; what is pending stays so where all are."""

from __future__ import annotations

import torch

from ..call import BoundCall
from ..dims import numbered, sizes_of
from ..factors import ALL_KINDS, Factors
from ..registry import Rule, rules

aten = torch.ops.aten


def _cat(call: BoundCall) -> Factors | None:
    first = call.tensors[0]
    if not first.ndim or any(x.ndim != first.ndim for x in call.tensors):
        return None
    dim, dims = call.dim("dim"), tuple(numbered(first.ndim))
    sizes = sizes_of(first.shape) | {f"d{dim}": sum(x.shape[dim] for x in call.tensors)}
    whole = frozenset({f"d{dim}"})
    return Factors((dims,) * len(call.tensors), (dims,), sizes, whole, linear="all", keeps=ALL_KINDS)


def _stack(call: BoundCall) -> Factors:
    first, count = call.tensors[0], len(call.tensors)
    dims, dim = tuple(numbered(first.ndim)), call.dim("dim", first.ndim + 1)
    joined = (*dims[:dim], ("stacked",), *dims[dim:])
    sizes, whole = sizes_of(first.shape) | {"stacked": count}, frozenset({"stacked"})
    return Factors((dims,) * count, (joined,), sizes, whole, linear="all", keeps=ALL_KINDS)


rules |= {aten.cat.default: Rule(_cat), aten.stack.default: Rule(_stack)}
