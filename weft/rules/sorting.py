"""Ops that order what stands along a dim, which must be whole; the others are as they were."""

from __future__ import annotations

import torch

from .call import BoundCall
from .factors import Factors
from .registry import Rule, rules
from .slicing import along, named

aten = torch.ops.aten


def _ordering(*, keepdim: bool | None = True, outputs: int = 2) -> Rule:
    """Values and indices along a dim; keepdim None: the call says whether the dim stays."""

    def factors(call: BoundCall) -> Factors | None:
        x = call.tensors[0]
        if 0 in x.shape:
            return None  # what there is of nothing, or that there is none, torch says
        dim = along(call.arg("dim", -1), x.ndim)
        stays = bool(call.arg("keepdim", False)) if keepdim is None else keepdim
        table = named(x.ndim)
        output = list(table)
        output[dim : dim + 1] = [()] if stays and x.ndim else []
        sizes = {f"d{i}": size for i, size in enumerate(x.shape)}
        return Factors((tuple(table),), (tuple(output),) * outputs, sizes, frozenset({f"d{dim}"}), reduces=None)

    return Rule(factors)


rules |= {
    aten.sort.default: _ordering(),
    aten.sort.stable: _ordering(),
    aten.argsort.default: _ordering(outputs=1),
    aten.argsort.stable: _ordering(outputs=1),
    aten.topk.default: _ordering(),
    aten.kthvalue.default: _ordering(keepdim=None),
    aten.mode.default: _ordering(keepdim=None),
    aten.median.dim: _ordering(keepdim=None),
    aten.nanmedian.dim: _ordering(keepdim=None),
}


def _searched(call: BoundCall) -> Factors | None:
    """A sorted sequence, whole along its last dim, and values that may be split; rows of both go together."""
    first, second = call.tensors[:2]
    sequence, values = (second, first) if call.func is aten.bucketize.Tensor else (first, second)
    rows = sequence.ndim > 1
    if len(call.tensors) > 2 or (rows and sequence.ndim != values.ndim):
        return None
    places = tuple((f"d{i}",) for i in range(values.ndim))
    sorted_dims = (*(places[:-1] if rows else ()), ("s",))
    sizes = {f"d{i}": size for i, size in enumerate(values.shape)} | {"s": sequence.shape[-1]}
    inputs = (places, sorted_dims) if call.func is aten.bucketize.Tensor else (sorted_dims, places)
    return Factors(inputs, (places,), sizes, frozenset({"s"}), reduces=None)


rules |= {
    aten.searchsorted.Tensor: Rule(_searched),
    aten.bucketize.Tensor: Rule(_searched),
}
