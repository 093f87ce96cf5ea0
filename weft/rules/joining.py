"""Joining along a dim: that dim is whole, the others may be split alike; pending sums pass where all are pending."""

from __future__ import annotations

from typing import cast

import torch

from .arguments import one_each
from .factors import Factors
from .registry import Call, Rule, rules

aten = torch.ops.aten


def _cat(call: Call) -> Factors | None:
    rank = call.tensors[0].ndim
    if not rank or any(spec.ndim != rank for spec in call.tensors):
        return None
    dim = cast(int, call.arg("dim", 0)) % rank
    names = [f"d{i}" for i in range(rank)]
    sizes = dict(zip(names, call.tensors[0].shape, strict=True))
    sizes[names[dim]] = sum(spec.shape[dim] for spec in call.tensors)
    dims = one_each(names)
    return Factors((dims,) * len(call.tensors), (dims,), sizes, frozenset({names[dim]}), linear="all")


def _stack(call: Call) -> Factors:
    rank = call.tensors[0].ndim
    dim = cast(int, call.arg("dim", 0)) % (rank + 1)
    names = [f"d{i}" for i in range(rank)]
    sizes = dict(zip(names, call.tensors[0].shape, strict=True)) | {"stacked": len(call.tensors)}
    joined = [*names[:dim], "stacked", *names[dim:]]
    return Factors(
        (one_each(names),) * len(call.tensors), (one_each(joined),), sizes, frozenset({"stacked"}), linear="all"
    )


rules |= {aten.cat.default: Rule(_cat), aten.stack.default: Rule(_stack)}
