"""Ops that order what stands along a dim, which must be whole; the others are as they were."""

from __future__ import annotations

import torch

from ..arguments import arranged
from ..call import BoundCall
from ..dims import numbered, one_each, sizes_of
from ..factors import Factors
from ..registry import Rule, rules

aten = torch.ops.aten


def _ordering(*, keepdim: bool | None = True, outputs: int = 2) -> Rule:
    """Values and indices along a dim; keepdim None: the call says whether the dim stays."""

    def factors(call: BoundCall) -> Factors | None:
        x = call.tensors[0]
        if 0 in x.shape:
            return None  # what there is of nothing, or that there is none, torch says
        dim, dims = call.dim("dim"), tuple(numbered(x.ndim))
        stays = call.flag("keepdim") if keepdim is None else keepdim
        output = (*dims[:dim], *([()] if stays and dims else []), *dims[dim + 1 :])
        return Factors((dims,), (output,) * outputs, sizes_of(x.shape), frozenset({f"d{dim}"}), reduces=None)

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
    sequence_name = "boundaries" if call.has("boundaries") else "sorted_sequence"
    sequence, values = call.tensor(sequence_name), call.tensor("self")
    rows = sequence.ndim > 1
    if len(call.tensors) > 2 or not sequence.ndim or (rows and sequence.ndim != values.ndim):
        return None
    places = tuple(numbered(values.ndim))
    sorted_dims = (*(places[:-1] if rows else ()), ("s",))
    sizes = sizes_of(values.shape) | {"s": sequence.shape[-1]}
    inputs = arranged(call, {"self": places, sequence_name: sorted_dims})
    return Factors(inputs, (places,), sizes, frozenset({"s"}), reduces=None)


def _is_in(call: BoundCall) -> Factors:
    """Elements, which may be split, and those that they are looked for among."""
    elements, among = call.tensor("elements"), call.tensor("test_elements")
    places, others = sizes_of(elements.shape), sizes_of(among.shape, "t")
    inputs = arranged(call, {"elements": one_each(places), "test_elements": one_each(others)})
    return Factors(inputs, (one_each(places),), places | others, frozenset(others), reduces=None)


rules |= {
    aten.isin.Tensor_Tensor: Rule(_is_in),
    aten.searchsorted.Tensor: Rule(_searched),
    aten.bucketize.Tensor: Rule(_searched),
}
