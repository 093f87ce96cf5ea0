"""Conjugates and negatives are computed at once: torch's lazy marks are not seen by the ops that run on the pieces.

They are views for torch all the same, so they are copies that remember what they show. They bear its marks, so that
`resolve_conj` and `resolve_neg` give copies of them; for other ops torch then makes such a copy first.
"""

from __future__ import annotations

import torch

from ...rules.call import BoundCall, each_of
from ..handlers import handler
from ..memory import memory_of
from ..op_kind import kind_of
from ..sharded import ShardedTensor, as_sharded, sharded
from ..writes.writing import store
from .copy_views import remember

__all__ = ["keep_marks", "mark"]

aten = torch.ops.aten

_COMPUTED = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}
"""Each is its own inverse: what is read of a tensor by it is written back by it."""


@handler(*_COMPUTED)
def _at_once(call: BoundCall) -> object:
    func, x = call.func, sharded(call, "self")
    _ = x._value.pieces  # what only some devices have is sent: all of them are to show it

    def read(base: ShardedTensor) -> ShardedTensor:
        return as_sharded(_COMPUTED[func](base))

    def write(base: ShardedTensor, view: ShardedTensor) -> None:
        store(base, read(view), str(func))

    y = remember(memory_of(x._layout).laid_like(read(x), x), x, read, write)
    mark(
        y,
        conjugate=x.is_conj() != (func is aten._conj.default),
        negative=x.is_neg() != (func is aten._neg_view.default),
    )
    return y


def keep_marks(call: BoundCall, result: object) -> None:
    """Marks views of a tensor that bears marks."""
    base = None if kind_of(call.func).viewed != 0 or call.func in _COMPUTED else call.args[0]
    if isinstance(base, ShardedTensor) and (base.is_conj() or base.is_neg()):
        for y in each_of(result):
            mark(as_sharded(y), conjugate=base.is_conj(), negative=base.is_neg())


def mark(x: ShardedTensor, *, conjugate: bool, negative: bool) -> None:
    """Says of a tensor whether it shows the conjugates, or the negatives, of what another holds."""
    torch._C._set_conj(x, conjugate)
    torch._C._set_neg(x, negative)
