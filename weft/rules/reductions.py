"""Reductions: a reduced dim that is split leaves a pending reduction of the same kind."""

from __future__ import annotations

import torch

from ..sharding.placements import ReduceOp
from .arguments import dim_set
from .call import BoundCall
from .factors import Factors
from .registry import Rule, rules

__all__ = ["reduction"]

aten = torch.ops.aten

_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})
_MAX, _MIN, _PROD = frozenset({ReduceOp.MAX}), frozenset({ReduceOp.MIN}), frozenset({ReduceOp.PROD})


def reduction(kind: ReduceOp | None, *, keeps: frozenset[ReduceOp] = frozenset(), bools: bool = False) -> Rule:
    """The rule of an op that reduces the dims it names; kind None: they must be whole.

    `keeps`: the pending reductions that pass through; of truth values none does, unless `bools`.
    """

    def factors(call: BoundCall) -> Factors:
        spec = call.tensors[0]
        dims = dim_set(call.arg("dim"), spec.ndim)
        keepdim = bool(call.arg("keepdim", False))
        inputs = tuple((f"d{i}",) for i in range(spec.ndim))
        output = tuple(() if i in dims else (f"d{i}",) for i in range(spec.ndim) if keepdim or i not in dims)
        return Factors(
            (inputs,),
            (output,) * len(call.func._schema.returns),
            {f"d{i}": size for i, size in enumerate(spec.shape)},
            reduces=kind,
            linear=0 if keeps and (spec.dtype is torch.bool) == bools else "no",
            keeps=keeps,
        )

    if bools or kind in (ReduceOp.SUM, ReduceOp.PROD):
        return Rule(factors)  # what these give of nothing changes nothing
    return Rule(factors, of_nothing=ReduceOp.SUM if kind is None else kind)


def scan(linear: bool = False) -> Rule:
    """The rule of an op that goes along one dim, which must be whole, and keeps the shape."""

    def factors(call: BoundCall) -> Factors:
        spec = call.tensors[0]
        dims = tuple((f"d{i}",) for i in range(spec.ndim))
        whole = frozenset(f"d{i}" for i in dim_set(call.arg("dim"), spec.ndim))
        sizes = {f"d{i}": size for i, size in enumerate(spec.shape)}
        outputs = (dims,) * len(call.func._schema.returns)
        return Factors((dims,), outputs, sizes, whole, linear=0 if linear and spec.dtype is not torch.bool else "no")

    return Rule(factors, of_nothing=ReduceOp.SUM)


_KINDS: dict[str, Rule] = {
    "sum sum.dim_IntList": reduction(ReduceOp.SUM, keeps=_SUMS),
    "nansum count_nonzero.dim_IntList": reduction(ReduceOp.SUM),
    "prod prod.dim_int": reduction(ReduceOp.PROD, keeps=_PROD),
    "amax max": reduction(ReduceOp.MAX, keeps=_MAX),
    "amin min": reduction(ReduceOp.MIN, keeps=_MIN),
    "any any.dim any.dims": reduction(ReduceOp.MAX, keeps=_MAX, bools=True),
    "all all.dim all.dims": reduction(ReduceOp.MIN, keeps=_MIN, bools=True),
    "max.dim min.dim median.dim nanmedian.dim mode kthvalue argmax argmin": reduction(None),
    "linalg_vector_norm norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype": reduction(None),
    "var.correction std.correction var_mean.correction std_mean.correction logsumexp aminmax": reduction(None),
    "median nanmedian": reduction(None),
    "cumsum": scan(linear=True),
    "cumprod cummax cummin logcumsumexp": scan(),
    "_fft_c2c _fft_r2c _fft_c2r": scan(linear=True),
    "glu": scan(),
}
"""Op (its `default` overload where none is said) to its rule."""

for _names, _rule in _KINDS.items():
    for _name in _names.split():
        _packet, _, _overload = _name.partition(".")
        rules[getattr(getattr(aten, _packet), _overload or "default")] = _rule
