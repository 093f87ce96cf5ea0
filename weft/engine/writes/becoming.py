"""`become`: a tensor is made what another one is, for whoever holds it."""

from __future__ import annotations

import torch

from ..memory import memory_of
from ..sharded import KEPT_PLAIN, ShardedTensor, as_it_is
from ..total import note_write
from ..views.copy_views import count_beside, note_unseen_write, remember_apart

__all__ = ["become", "share"]

_uses = torch._C._storage_Use_Count
_ALONE = 2
"""How many have the memory of a tensor that nobody else has: it, and who asks."""


def become(x: ShardedTensor, other: ShardedTensor) -> None:
    """Makes a tensor what another one is: the same object, with the other's shape and memory."""
    note_write()
    if KEPT_PLAIN in x.__dict__:
        _ = x.grad  # which lies as the tensor did until now
    stand = None if x._value.stand is None else x._value.stand()
    if stand is not None:
        stand.tensor, stand.has_become = as_it_is(x), True
        count_beside(stand.tensor, x)  # torch counts writes to views of what it was with its own, or those of its base
    # What it was is counted anew. Said also where no view is left: when one goes, processes may not agree on.
    note_unseen_write()
    value = other._value.taken()
    value.is_viewed = x._value.is_viewed
    value.has_other_views = x._value.has_other_views or x._value.is_viewed
    torch.Tensor.data.__set__(x, other)  # type: ignore[attr-defined]
    x._form, x._value, x._asked = other._form, value, other._asked


def share(x: ShardedTensor, other: ShardedTensor) -> None:
    """Makes a tensor what another one is, in the memory of that one: views that are copies of either show writes to both."""
    become(x, other)
    count_beside(x, other)
    if x._is_view() and isinstance(x._base, ShardedTensor):
        x._base._value.has_other_views = True
    pieces = other._value.pieces if memory_of(other._layout).copies_views(other) else ()
    # Others still have it, whom nobody here knows, as what it was detached from; and views of a view are views of its base to torch.
    if x._is_view() or any(_uses(piece.untyped_storage()._cdata) > _ALONE for piece in pieces):
        remember_apart(x, other)
