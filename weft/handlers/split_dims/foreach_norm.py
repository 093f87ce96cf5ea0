"""Norms of a list of tensors, as `clip_grad_norm_` asks for them: one all-reduce for all that are split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from ...engine.arguments import argument
from ...engine.handlers import handler
from ...engine.moves.movement import moved
from ...engine.moves.resolving import resolve
from ...engine.sharded import ShardedTensor
from ...rules.call import BoundCall
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from .reductions import is_cut, is_norm, norm_of, norm_terms, wide

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


@handler(aten._foreach_norm.Scalar)
def _norms(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    tensors = list(cast("Sequence[torch.Tensor]", args[0]))
    order = float(cast(float, argument(func, args, kwargs, "ord")))
    dtype = cast("torch.dtype | None", argument(func, args, kwargs, "dtype"))
    results: dict[int, torch.Tensor] = {}
    waiting: dict[tuple[DeviceMesh, torch.dtype], dict[int, ShardedTensor]] = {}
    for i, x in enumerate(tensors):
        if not isinstance(x, ShardedTensor) or x._layout.pending or not is_cut(x, frozenset(range(x.dim()))):
            results[i] = aten.linalg_vector_norm.default(x, order, None, False, dtype=dtype)
            continue
        terms = cast(ShardedTensor, norm_terms(wide(x, dtype), order, list(range(x.dim())), False))
        # A sum or an extreme that is the norm itself may stay pending: torch stacks them, and that is reduced once too.
        if terms._layout.pending and not is_norm(order):
            waiting.setdefault((x._layout.mesh, terms.dtype), {})[i] = terms
        else:
            results[i] = norm_of(terms, order)
    for group in waiting.values():
        results |= zip(group, _together(list(group.values()), order, str(func)), strict=True)
    return [_as(results[i], dtype or x.dtype) for i, x in enumerate(tensors)]


def _together(terms: list[ShardedTensor], order: float, op: str) -> Sequence[torch.Tensor]:
    """The norms of terms that are pending along different axes: stacked as pending along all of them, reduced once."""
    mesh, pending = terms[0]._layout.mesh, dict(pair for x in terms for pair in x._layout.pending)
    layout = Layout(mesh, (), pending)
    alike = [x if x._layout is layout else moved(x, layout, op, implicit=True) for x in terms]
    stacked = cast(ShardedTensor, aten.cat.default([aten.reshape.default(x, [1]) for x in alike], 0))
    return cast("Sequence[torch.Tensor]", aten.unbind.int(norm_of(resolve(stacked, op), order), 0))


def _as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    dtype = dtype.to_real() if dtype.is_complex else dtype
    return x if x.dtype is dtype else x.to(dtype)
