"""Resolving pending tensors: each once, and those that are views of one another together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch

from .aliasing import is_current, remember_resolved
from .movement import moved
from .op_kind import is_elementwise, kind_of
from .tensor import Tensor
from .total import last_write

__all__ = ["Turned", "is_expanded", "is_resolved", "note_computed", "note_turned", "resolve"]

aten = torch.ops.aten
Args = tuple[object, ...]
Kwargs = dict[str, object]

_TURNS = frozenset(
    {
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.expand.default,
    }
)
"""Views of all elements: what is resolved of one is resolved of the other."""


@dataclass(frozen=True, slots=True)
class Turned:
    """Which pending tensor another is a view of, while that has the memory it had, and the view."""

    base: Tensor
    memory: object
    again: Callable[[Tensor], Tensor]
    writes: int | None = None
    """Where it is no view, but was computed of one: how many writes there had been, after any of which it is another."""
    is_resolved: bool = False
    """Whether what it was computed of had been resolved by then."""

    @property
    def holds(self) -> bool:
        """Whether it still is what it was when this was noted."""
        return _memory(self.base) is self.memory and self.writes in (None, last_write())


def note_turned(func: torch._ops.OpOverload, view: Tensor, base: Tensor, again: Callable[[Tensor], Tensor]) -> None:
    """Notes that a tensor is a view of all elements of a pending one."""
    if base._layout.pending and func in _TURNS:
        view._turned = Turned(base, _memory(base), again)


def _memory(x: Tensor) -> object:
    """An object that a tensor keeps as long as it keeps its memory."""
    return x._pieces if x._total is None else x._total


def note_computed(func: torch._ops.OpOverload, result: object, args: Args, kwargs: Kwargs) -> None:
    """Notes what a pending result was computed of, element by element, where that is resolved for less, or was already."""
    if type(result) is not Tensor or not result._layout.pending:
        return
    if not is_elementwise(func) or not kind_of(func).is_pure:
        return
    given = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
    waiting = [at for at in given if type(args[at]) is Tensor and cast(Tensor, args[at])._layout.pending]
    if not waiting:
        return
    x = cast(Tensor, args[waiting[0]])
    if len(given) == 1 and is_expanded(x) and x._layout is result._layout and x.shape == result.shape:
        _note_expanded(func, result, args, kwargs, given[0])
    elif all(is_resolved(cast(Tensor, args[at])) for at in waiting):

        def again(first: Tensor) -> Tensor:
            here = list(args)
            here[waiting[0]] = first
            for at in waiting[1:]:
                here[at] = resolve(cast(Tensor, args[at]), str(func))
            return cast(Tensor, Tensor._run(func, tuple(here), kwargs))

        result._turned = Turned(x, _memory(x), again, last_write(), is_resolved=True)


def _note_expanded(func: torch._ops.OpOverload, result: Tensor, args: Args, kwargs: Kwargs, at: int) -> None:
    turned = cast(Tensor, args[at])._turned
    assert turned is not None

    def again(base: Tensor) -> Tensor:
        here = list(args)
        here[at] = turned.again(base)
        return cast(Tensor, Tensor._run(func, tuple(here), kwargs))

    result._turned = Turned(turned.base, turned.memory, again, last_write())


def is_expanded(x: Tensor) -> bool:
    """Whether a pending tensor is an expanded view of a smaller one, or computed of one, which is resolved in its stead."""
    return x._turned is not None and x._turned.base.numel() < x.numel() and x._turned.holds


def is_resolved(x: Tensor) -> bool:
    """Whether the resolved form of a pending tensor is there, or computed without moving anything.

    What moves depends on that; the layouts that are chosen never do.
    """
    if x._resolved is not None and is_current(x):
        return True
    turned = x._turned
    return turned is not None and turned.is_resolved and turned.holds


def resolve(x: Tensor, op: str) -> Tensor:
    """A pending tensor with nothing pending; it is kept, for the ops after this one and for other views of the same."""
    if x._resolved is not None and is_current(x):
        return x._resolved
    result = None
    if x._turned is not None and x._turned.holds:
        result = x._turned.again(resolve(x._turned.base, op))
    if result is None or result._layout is not x._layout.resolved:
        result = moved(x, x._layout.resolved, op, implicit=True)
    remember_resolved(x, result)
    if x._turned is not None and x._turned.is_resolved:
        x._turned = None  # what it was computed of need not stay for its sake
    return result
