"""Reductions: a reduced dim that is split leaves a pending reduction of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ..sharding.placements import ReduceOp
from .factors import Factors
from .registry import Call, Rule, rules

__all__ = ["reduction"]

aten = torch.ops.aten


def reduction(kind: ReduceOp | None, *, linear: bool = False) -> Rule:
    """The rule of an op that reduces some dims; kind None: they must be whole."""

    def factors(call: Call) -> Factors:
        spec = call.tensors[0]
        named = call.arg("dim")
        if named is None or (isinstance(named, (list, tuple)) and not named):
            dims = set(range(spec.ndim))
        else:
            dims = {
                d % spec.ndim if spec.ndim else 0
                for d in (cast("Sequence[int]", named) if isinstance(named, (list, tuple)) else [cast(int, named)])
            }
        keepdim = bool(call.arg("keepdim", False))
        inputs = tuple((f"d{i}",) for i in range(spec.ndim))
        output = tuple(() if i in dims else (f"d{i}",) for i in range(spec.ndim) if keepdim or i not in dims)
        return Factors(
            (inputs,),
            (output,) * len(call.func._schema.returns),
            {f"d{i}": size for i, size in enumerate(spec.shape)},
            reduces=kind,
            linear=0 if linear else "no",
        )

    return Rule(factors)


rules |= {
    aten.sum.default: reduction(ReduceOp.SUM, linear=True),
    aten.sum.dim_IntList: reduction(ReduceOp.SUM, linear=True),
    aten.prod.default: reduction(ReduceOp.PROD),
    aten.prod.dim_int: reduction(ReduceOp.PROD),
    aten.amax.default: reduction(ReduceOp.MAX),
    aten.amin.default: reduction(ReduceOp.MIN),
    aten.max.default: reduction(ReduceOp.MAX),
    aten.min.default: reduction(ReduceOp.MIN),
    aten.any.default: reduction(ReduceOp.MAX),
    aten.any.dim: reduction(ReduceOp.MAX),
    aten.any.dims: reduction(ReduceOp.MAX),
    aten.all.default: reduction(ReduceOp.MIN),
    aten.all.dim: reduction(ReduceOp.MIN),
    aten.all.dims: reduction(ReduceOp.MIN),
}
