"""`own_whole`: what a gradient is, as one plain tensor that no other tensor shares memory with."""

from __future__ import annotations

import torch

from ...runtime.memory.lazy_copy import is_shared_until_written
from ...runtime.memory.memory_limit import memory_limit
from ...sharding.layout import Layout
from ...watch.notes import is_watched
from ..memory import memory_of
from ..sharded import ShardedTensor
from .adding_up import is_adding_up

__all__ = ["own_whole"]

_ALONE = 2
"""How often torch counts the memory of a tensor that nobody else has: there is also what asks."""
_uses = torch._C._storage_Use_Count


def own_whole(grad: ShardedTensor, target: Layout) -> torch.Tensor | None:
    """The value of a gradient, brought to a layout where nothing has to be told of that; None where there is no such tensor.

    Whoever has it may write to it: no other tensor shows that.
    """
    form, value = grad._form, grad._value
    layout = form.layout
    if form.is_special or memory_of(layout).pieces_are_shards:
        return None
    whole = None
    if layout is target:
        whole = value.pieces[0] if value.is_made else None
    elif layout.pending and layout.resolved is target and _is_unseen():
        known = value.total
        whole = None if known is None or known.written[0] else known.value
    if type(whole) is not torch.Tensor or is_shared_until_written(whole):
        return None
    return whole if _uses(whole.untyped_storage()._cdata) == _ALONE else None


def _is_unseen() -> bool:
    """Whether what is pending may be resolved by calling it so: nobody logs it, limits it or wants it to wait."""
    return not (is_adding_up() or is_watched() or memory_limit() is not None)
