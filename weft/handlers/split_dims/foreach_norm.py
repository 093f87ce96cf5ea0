"""Norms of a list of tensors, as `clip_grad_norm_` asks for them: one all-reduce for all that are split."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.handlers import handler
from ...engine.moves.movement import moved
from ...engine.moves.resolving import resolve
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from .reductions import as_real, is_cut, is_norm, norm_of, norm_terms, wide

aten = torch.ops.aten


@handler(aten._foreach_norm.Scalar)
def _norms(call: BoundCall) -> object:
    tensors, order, dtype = call.tensor_list("self"), call.number("ord"), call.dtype()
    results: dict[int, torch.Tensor] = {}
    waiting: dict[tuple[DeviceMesh, torch.dtype], dict[int, ShardedTensor]] = {}
    for i, x in enumerate(tensors):
        if not isinstance(x, ShardedTensor) or x._layout.pending or not is_cut(x, range(x.dim())):
            results[i] = aten.linalg_vector_norm.default(x, order, None, False, dtype=dtype)
            continue
        terms = norm_terms(wide(x, dtype), order, list(range(x.dim())), False)
        # A sum or an extreme that is the norm itself may stay pending: torch stacks them, and that is reduced once too.
        if isinstance(terms, ShardedTensor) and terms._layout.pending and not is_norm(order):
            waiting.setdefault((x._layout.mesh, terms.dtype), {})[i] = terms
        else:
            results[i] = norm_of(terms, order)
    for group in waiting.values():
        results |= zip(group, _together(list(group.values()), order, str(call)), strict=True)
    return [as_real(results[i], dtype or x.dtype) for i, x in enumerate(tensors)]


def _together(terms: list[ShardedTensor], order: float, op: str) -> Sequence[torch.Tensor]:
    """The norms of terms that are pending along different axes: stacked as pending along all of them, reduced once."""
    layout = Layout(terms[0].mesh, (), dict(pair for x in terms for pair in x._layout.pending))
    alike = [x if x._layout is layout else moved(x, layout, op, implicit=True) for x in terms]
    stacked = aten.cat.default([aten.reshape.default(x, [1]) for x in alike], 0)
    return norm_of(resolve(stacked, op), order).unbind(0)
