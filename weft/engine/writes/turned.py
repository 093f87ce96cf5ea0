"""Turned tensors: those that `t_`, `unsqueeze_` and the like made views of themselves while gradients are tracked.

Torch finds the gradient of a view whose base was written to by viewing the base again. For a tensor class it repeats
the op that made the view, on the base as it is by then; whether one of the two was turned meanwhile it does not know,
and the gradient would be that of other elements. Such programs are refused where they would go wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch

from ..form import special
from ..sharded import ShardedTensor

__all__ = ["note_turned", "refuse_turned"]

_turned: WeakValueDictionary[int, ShardedTensor] = WeakValueDictionary()
"""Views that were turned. Bound: those that live. Cleared: as they go."""


def note_turned(x: ShardedTensor, op: str) -> None:
    """Says that a tensor is about to be turned; raises where gradients of its views would be lost."""
    if not (torch.is_grad_enabled() and x.requires_grad) or x.is_leaf:
        return
    if not x._is_view():
        # Torch turns results of its own in place, as those of vectors by matrices: most tensors never had a view.
        views = [view for view in _views_of(x) if view.requires_grad] if x._value.is_viewed else ()
        if views:
            raise RuntimeError(
                f"{op} would change the tensor of shape {list(x.shape)} of which {len(views)} views are in use, and their "
                f"gradients would be lost: use y = x.{op.removesuffix('_')}(...), which leaves x as it is"
            )
        return
    _turned[id(x)] = x
    base = x._base
    for each in (x, base, *_views_of(base)):
        if isinstance(each, ShardedTensor):
            each._form = special(each._form)


def refuse_turned(written: Iterable[torch.Tensor], op: str) -> None:
    """Raises where a write would change a view that was turned, or what such a view shows."""
    if not _turned or not torch.is_grad_enabled():
        return
    for x in written:
        root = x._base if x._is_view() else x
        for view in tuple(_turned.values()):
            if view._base is root and root is not None:
                raise RuntimeError(
                    f"{op} writes to memory of a view of shape {list(view.shape)} that was changed in place before (t_, "
                    "transpose_, squeeze_, unsqueeze_), and its gradient would be lost: turn it with view = view.t() and "
                    "the like, or write to a copy, x.clone()"
                )


def _views_of(base: torch.Tensor | None) -> list[ShardedTensor]:
    """The views of a tensor that somebody holds."""
    return [
        x for x in gc.get_objects() if type(x) is ShardedTensor.final and x._is_view() and x._base is base is not None
    ]
