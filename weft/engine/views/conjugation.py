"""Conjugates and negatives are computed at once: torch's lazy marks are not seen by the ops that run on the pieces.

They are views for torch all the same, so they are copies that remember what they show. They bear its marks, so that
`resolve_conj` and `resolve_neg` give copies of them; for other ops torch then makes such a copy first.
"""

from __future__ import annotations

from typing import cast

import torch

from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...runtime.lazy_copy import may_overlap
from ..handlers import handler
from ..op_kind import kind_of
from ..sharded import ShardedTensor, wrap
from ..writes.writing import store
from .copy_views import remember
from .view_results import shown

__all__ = ["keep_marks", "mark"]

aten = torch.ops.aten
Op = torch._ops.OpOverload

_COMPUTED = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
"""Each is its own inverse: what is read of a tensor by it is written back by it."""


@handler(*_COMPUTED)
def _at_once(call: BoundCall) -> object:
    func, args = call.func, call.args
    x = cast(ShardedTensor, args[0])

    def read(base: ShardedTensor) -> ShardedTensor:
        return cast(ShardedTensor, _COMPUTED[func](base))

    def write(base: ShardedTensor, view: ShardedTensor) -> None:
        store(base, read(view), str(func))

    y = read(x)
    if not holding(x._layout).unified:
        noted, y = y._value.turned, shown(x, y, (x.stride(), 0))
        y._value.turned = noted
    elif y.stride() != x.stride() and not x._layout.pending and not may_overlap(x):
        y = wrap((_with_gaps(y._value.pieces[0], x),), y._layout, y.shape, strides=x.stride())
    remember(y, x, read, write)
    mark(
        y,
        conjugate=x.is_conj() != (func is aten._conj.default),
        negative=x.is_neg() != (func is aten._neg_view.default),
    )
    return y


def _with_gaps(value: torch.Tensor, x: ShardedTensor) -> torch.Tensor:
    """A value as a view of memory lies that has gaps: torch says the strides of what is conjugated."""
    return torch.empty_strided(x.shape, x.stride(), dtype=value.dtype, device=value.device).copy_(value)


def keep_marks(call: BoundCall, result: object) -> None:
    """Marks views of a tensor that bears marks."""
    base = None if kind_of(call.func).viewed != 0 or call.func in _COMPUTED else call.args[0]
    if isinstance(base, ShardedTensor) and (base.is_conj() or base.is_neg()):
        for y in result if isinstance(result, (list, tuple)) else (result,):
            mark(cast(ShardedTensor, y), conjugate=base.is_conj(), negative=base.is_neg())


def mark(x: ShardedTensor, *, conjugate: bool, negative: bool) -> None:
    """Says of a tensor whether it shows the conjugates, or the negatives, of what another holds."""
    torch._C._set_conj(x, conjugate)
    torch._C._set_neg(x, negative)
