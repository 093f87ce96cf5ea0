"""Turned tensors: those that `t_`, `unsqueeze_` and the like made views of themselves while gradients are tracked.

Torch finds the gradient of a view whose base was written to by viewing the base again. For a tensor class it repeats
the op that made the view, on the base as it is by then; whether one of the two was turned meanwhile it does not know,
and the gradient would be that of other elements. Such programs are refused where they would go wrong: where they write,
and where something that torch does not follow has written, or turned the view, and it is used again.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from weakref import WeakValueDictionary

import torch
from torch.autograd.graph import _engine_run_backward

from ...rules.call import each_of
from ..form import special
from ..sharded import ShardedTensor, requires_grad

__all__ = [
    "is_stale",
    "may_be_turned",
    "note_turned",
    "note_views_of_turned",
    "refuse_stale",
    "refuse_stale_graph",
    "refuse_turned",
    "views_of",
]

_turned: WeakValueDictionary[int, ShardedTensor] = WeakValueDictionary()
"""Views that were turned, and views made of such. Bound: those that live. Cleared: as they go."""
_written: dict[int, int] = {}
"""How often their memory had been written to by then, as torch counts. Bound: as many as views were noted. Cleared: of views that went, when one is noted."""
_NEVER = -1
"""Stands for that where a view was turned without gradients, and is stale at once."""


def may_be_turned(x: ShardedTensor, op: str) -> bool:
    """Whether gradients ask for note of a tensor that is about to be turned; raises where those of its views would be lost."""
    if id(x) in _turned:
        return True
    if not requires_grad(x):
        return False
    if not x._is_view():
        # Torch turns results of its own in place, as those of vectors by matrices: most tensors never had a view.
        views = [view for view in views_of(x) if requires_grad(view)] if x._value.is_viewed else ()
        if views:
            raise RuntimeError(
                f"{op} would change the tensor of shape {list(x.shape)} of which {len(views)} views are in use, and their "
                f"gradients would be lost: use y = x.{op.removesuffix('_')}(...), which leaves x as it is"
            )
    return x._is_view()


def note_turned(x: ShardedTensor) -> None:
    """Says that a view was turned: ops on it, and on others of the same memory, are looked at from now on."""
    if not torch.is_grad_enabled():
        _note(x, _NEVER)  # torch takes that for a write that it did not follow
    elif id(x) not in _turned:
        _note(x, x._version + 1)  # torch counts the op when it is done
    base = x._base
    for each in (x, base, *views_of(base)):
        if isinstance(each, ShardedTensor):
            each._form = special(each._form)


def note_views_of_turned(base: torch.Tensor, views: object) -> None:
    """Says that views were made of a tensor: those of one that was turned are as stale as it is, once it is written to."""
    if not _turned:
        return
    is_turned = id(base) in _turned
    if not is_turned and not any(view._base is base or view._base is base._base for view in _turned.values()):
        return
    refuse_stale(_differentiated(), "backward")
    for each in each_of(views):
        if isinstance(each, ShardedTensor) and each is not base:
            if is_turned:
                _note(each, base._version)
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


def refuse_stale(used: Sequence[torch.Tensor], op: str) -> None:
    """Raises where a view that was turned is used after a write to its memory that torch did not follow."""
    for x in used if _turned and torch.is_grad_enabled() else ():
        refuse_stale_graph(x, op)


def refuse_stale_graph(x: torch.Tensor, op: str) -> None:
    """Raises where what a tensor was computed by is asked of such a view, with gradients or without: torch would make it anew."""
    if is_stale(x):
        raise RuntimeError(
            f"{op} uses a view of shape {list(x.shape)} that was changed in place before (t_, transpose_, squeeze_, "
            "unsqueeze_), and then written to without gradients, or turned so, and its gradient would be lost: turn it with "
            "view = view.t() and the like, or write to a copy, x.clone()"
        )


def is_stale(x: torch.Tensor) -> bool:
    """Whether a tensor is such a view."""
    return bool(_turned) and _turned.get(id(x)) is x and x.requires_grad and x._version != _written[id(x)]


def _differentiated() -> Sequence[torch.Tensor]:
    """What a call differentiates that torch is about to begin: it views the base of a stale view again to do so."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    if frame.f_code is not _engine_run_backward.__code__:
        return ()
    return [x for x in frame.f_locals["t_outputs"] if isinstance(x, torch.Tensor)]


_OWN = __name__.partition(".")[0] + "."


def _note(x: ShardedTensor, version: int) -> None:
    for gone in _written.keys() - _turned.keys():
        del _written[gone]
    _turned[id(x)], _written[id(x)] = x, version


def views_of(base: torch.Tensor | None) -> list[ShardedTensor]:
    """The views of a tensor that somebody holds."""
    return [
        x for x in gc.get_objects() if type(x) is ShardedTensor.final and x._is_view() and x._base is base is not None
    ]
