"""`become`: a tensor is made what another one is, for whoever holds it."""

from __future__ import annotations

import torch

from ..sharded import KEPT_PLAIN, ShardedTensor, as_it_is
from ..total import note_write
from ..views.copy_views import count_beside, note_unseen_write

__all__ = ["become"]


def become(x: ShardedTensor, other: ShardedTensor) -> None:
    """Makes a tensor what another one is: the same object, with the other's shape and memory."""
    note_write()
    if KEPT_PLAIN in x.__dict__:
        _ = x.grad  # which lies as the tensor did until now
    stand = None if x._value.stand is None else x._value.stand()
    if stand is not None:
        stand.tensor, stand.has_become = as_it_is(x), True
        if x._is_view():
            count_beside(stand.tensor, x)  # what it was is still a part of its base
    # What it was is counted anew. Said also where no view is left: when one goes, processes may not agree on.
    note_unseen_write()
    value = other._value.taken()
    value.is_viewed = x._value.is_viewed
    torch.Tensor.data.__set__(x, other)  # type: ignore[attr-defined]
    x._form, x._value, x._asked = other._form, value, other._asked
