"""Reductions: a reduced dim that is split leaves a pending reduction of the same kind."""

from __future__ import annotations

import torch

from ...sharding.placements import ReduceOp
from ..arguments import reduced_dims
from ..call import BoundCall
from ..dims import numbered, sizes_of
from ..factors import SUMS, Factors
from ..registry import Rule, ops_named, rules

__all__ = ["reduction"]

_MAX, _MIN, _PROD = frozenset({ReduceOp.MAX}), frozenset({ReduceOp.MIN}), frozenset({ReduceOp.PROD})


def reduction(kind: ReduceOp | None, *, keeps: frozenset[ReduceOp] = frozenset(), bools: bool = False) -> Rule:
    """The rule of an op that reduces the dims it names; kind None: they must be whole.

    `keeps`: the pending reductions that pass through; of truth values none does, unless `bools`.
    """
    widens = kind in (ReduceOp.SUM, ReduceOp.PROD)

    def factors(call: BoundCall) -> Factors:
        x, dims, keepdim = call.tensors[0], reduced_dims(call), call.flag("keepdim")
        inputs = numbered(x.ndim)
        output = tuple(() if i in dims else dim for i, dim in enumerate(inputs) if keepdim or i not in dims)
        return Factors(
            (tuple(inputs),),
            (output,) * len(call.func._schema.returns),
            sizes_of(x.shape),
            reduces=kind,
            linear=0 if keeps and (x.dtype is torch.bool) == bools and not (widens and _is_rounded(call)) else "no",
            keeps=keeps,
        )

    if bools or widens:
        return Rule(factors)  # what these give of nothing changes nothing
    return Rule(factors, of_nothing=ReduceOp.SUM if kind is None else kind)


def _is_rounded(call: BoundCall) -> bool:
    """Whether what is pending has to be reduced in its own dtype before: short integers wrap around there.

    In a dtype that is asked for and has no such numbers, each contribution would be cut.
    """
    given, wanted = call.tensors[0].dtype, call.dtype()
    return given in _SHORT or (wanted is not None and not torch.can_cast(given, wanted))


_SHORT = (torch.int8, torch.uint8, torch.int16, torch.int32)
"""The integers whose sums are longer ones."""


def scan(linear: bool = False) -> Rule:
    """The rule of an op that goes along one dim, which must be whole, and keeps the shape."""

    def factors(call: BoundCall) -> Factors:
        x = call.tensors[0]
        dims, outputs = tuple(numbered(x.ndim)), len(call.func._schema.returns)
        whole = frozenset(f"d{i}" for i in reduced_dims(call))
        through = 0 if linear and x.dtype is not torch.bool and not _is_rounded(call) else "no"
        return Factors((dims,), (dims,) * outputs, sizes_of(x.shape), whole, linear=through)

    return Rule(factors, of_nothing=ReduceOp.SUM)


_KINDS: dict[str, Rule] = {
    "sum sum.dim_IntList": reduction(ReduceOp.SUM, keeps=SUMS),
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
    for _op in ops_named(_names):
        rules[_op] = _rule
