"""Joining along a dim: that dim is whole, the others may be split alike; what is pending stays so where all are."""

from __future__ import annotations

from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .arguments import one_each
from .call import BoundCall
from .factors import Factors
from .registry import Rule, rules

aten = torch.ops.aten

_ALL_KINDS = frozenset(ReduceOp)


def _cat(call: BoundCall) -> Factors | None:
    rank = call.tensors[0].ndim
    if not rank or any(spec.ndim != rank for spec in call.tensors):
        return None
    dim = cast(int, call.arg("dim", 0)) % rank
    names = [f"d{i}" for i in range(rank)]
    sizes = dict(zip(names, call.tensors[0].shape, strict=True))
    sizes[names[dim]] = sum(spec.shape[dim] for spec in call.tensors)
    dims = one_each(names)
    whole = frozenset({names[dim]})
    return Factors((dims,) * len(call.tensors), (dims,), sizes, whole, linear="all", keeps=_ALL_KINDS)


def _stack(call: BoundCall) -> Factors:
    rank = call.tensors[0].ndim
    dim = cast(int, call.arg("dim", 0)) % (rank + 1)
    names = [f"d{i}" for i in range(rank)]
    sizes = dict(zip(names, call.tensors[0].shape, strict=True)) | {"stacked": len(call.tensors)}
    joined = [*names[:dim], "stacked", *names[dim:]]
    inputs, whole = (one_each(names),) * len(call.tensors), frozenset({"stacked"})
    return Factors(inputs, (one_each(joined),), sizes, whole, linear="all", keeps=_ALL_KINDS)


rules |= {aten.cat.default: Rule(_cat), aten.stack.default: Rule(_stack)}
