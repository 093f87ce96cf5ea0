"""Tangents: what differentiation in forward mode asks of a tensor and of the one beside it, which is to lie alike."""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..engine.memory import memory_of
from ..engine.sharded import ShardedTensor, wrap
from ..engine.views.view import at, extent
from ..rules.call import BoundCall
from ..runtime.holding import holding
from ..runtime.strides import row_major

aten = torch.ops.aten


@handler(aten._new_zeros_with_same_feature_meta.default)
def _zeros_beside(call: BoundCall) -> object:
    """Zeros for a tangent, which is to lie as its primal does, gaps and all: a view of one is a view of the other."""
    primal, tangent = call.tensor("other"), call.tensor("self")
    if not isinstance(primal, ShardedTensor):
        return run_by_rule(call)
    many = call.integer("self_num_batch_dims")
    if not many:
        return _zeros_as(primal, tangent.dtype)
    # Only how the primal lies is asked: what is pending of it stays so, and what is resolved may lie without its gaps.
    zeros = run_by_rule(call.replaced(other=_zeros_as(primal, primal.dtype)) if primal._layout.pending else call)
    if not isinstance(zeros, ShardedTensor):
        return zeros
    strides = zeros.stride()
    if memory_of(zeros._layout).pieces_are_shards:  # which do not lie as the primal does
        each = extent(primal)
        strides = (*(step * each for step in row_major(zeros.shape[:many])), *primal.stride())
    return at(primal, zeros, zeros._value.pieces, (strides, 0))


def _zeros_as(primal: ShardedTensor, dtype: torch.dtype) -> ShardedTensor:
    layout = primal._layout.resolved
    pieces = holding(layout).empty(primal.shape, dtype, "meta" if primal.is_meta else None)
    zeros = wrap(tuple(piece.zero_() for piece in pieces), layout, primal.shape, dtype=dtype, device=primal.device)
    return memory_of(layout).laid_like(zeros, primal)


@handler(aten._has_same_storage_numel.default)
def _is_as_large(call: BoundCall) -> bool:
    """Whether a primal and its tangent have as much memory: of tensors that lie apart their strides and offsets tell."""
    return True


@handler(aten.is_same_size.default)
def _is_same_size(call: BoundCall) -> bool:
    """Whether two tensors have one shape, for which nothing moves."""
    return call.tensor("self").shape == call.tensor("other").shape
