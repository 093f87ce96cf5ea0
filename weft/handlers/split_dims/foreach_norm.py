"""Norms of a list of tensors, as `clip_grad_norm_` asks for them: one all-reduce for all that are split."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...engine.handlers import handler
from ...engine.memory import held_whole
from ...engine.moves.movement import moved
from ...engine.moves.resolving import resolve
from ...engine.op_plan import NOT_REPEATED
from ...engine.running.quick import Call
from ...engine.sharded import ShardedTensor, tensor_of
from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.traced import is_traced
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...watch.notes import is_watched
from .reductions import as_real, is_cut, is_norm, norm_of, norm_terms, wide

aten = torch.ops.aten
_EUCLIDEAN = 2
"""The order that all norms are of, but for a few."""


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
    return _of_wholes(call, [as_real(results[i], dtype or x.dtype) for i, x in enumerate(tensors)])


def _of_wholes(call: BoundCall, results: list[torch.Tensor]) -> list[torch.Tensor]:
    """In one memory: norms that lie as these do, by one call on whole values, as plain torch has them; else these.

    Nobody is told of what that brings, so it is repeated where nobody asks.
    """
    tensors, rest = call.tensor_list("self"), call.args[1:]
    if call.number("ord") != _EUCLIDEAN or is_traced() or not all(map(_is_known_whole, (*tensors, *results))):
        return results
    norm: Call = torch._foreach_norm  # which parses lists in half the time that the overload takes
    forms = [x._form for x in results if isinstance(x, ShardedTensor)]

    def norms(args: Known, kwargs: Kwargs) -> list[torch.Tensor]:
        given = norm([x._value.pieces[0] for x in args[0]], *args[1:], **kwargs)
        return [tensor_of(form, (whole,)) for form, whole in zip(forms, given, strict=True)]

    def repeat(args: Known, kwargs: Kwargs) -> object:
        return NOT_REPEATED if args[1:] != rest or is_watched() or is_traced() else norms(args, kwargs)

    call.repeat = repeat
    return norms(call.args, call.kwargs)


def _is_known_whole(x: torch.Tensor) -> bool:
    """Whether a tensor is one plain tensor and a label."""
    return isinstance(x, ShardedTensor) and not x._form.is_special and held_whole(x) is not None


def _together(terms: list[ShardedTensor], order: float, op: str) -> Sequence[torch.Tensor]:
    """The norms of terms that are pending along different axes: stacked as pending along all of them, reduced once."""
    layout = Layout(terms[0].mesh, (), dict(pair for x in terms for pair in x._layout.pending))
    alike = [x if x._layout is layout else moved(x, layout, op, implicit=True) for x in terms]
    stacked = aten.cat.default([aten.reshape.default(x, [1]) for x in alike], 0)
    return norm_of(resolve(stacked, op), order).unbind(0)
