"""Resolving pending tensors: each once, and those that are views of one another together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .aliasing import is_current, remember_resolved
from .movement import moved
from .tensor import Tensor

__all__ = ["Turned", "is_expanded", "note_turned", "resolve"]

aten = torch.ops.aten

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


def note_turned(func: torch._ops.OpOverload, view: Tensor, base: Tensor, again: Callable[[Tensor], Tensor]) -> None:
    """Notes that a tensor is a view of all elements of a pending one."""
    if base._layout.pending and func in _TURNS:
        view._turned = Turned(base, _memory(base), again)


def _memory(x: Tensor) -> object:
    """An object that a tensor keeps as long as it keeps its memory."""
    return x._pieces if x._total is None else x._total


def is_expanded(x: Tensor) -> bool:
    """Whether a pending tensor is an expanded view of a smaller one, which is resolved in its stead."""
    return x._turned is not None and x._turned.base.numel() < x.numel()


def resolve(x: Tensor, op: str) -> Tensor:
    """A pending tensor with nothing pending; it is kept, for the ops after this one and for other views of the same."""
    if x._resolved is not None and is_current(x):
        return x._resolved
    result = None
    if x._turned is not None and _memory(x._turned.base) is x._turned.memory:
        result = x._turned.again(resolve(x._turned.base, op))
    if result is None or result._layout is not x._layout.resolved:
        result = moved(x, x._layout.resolved, op, implicit=True)
    remember_resolved(x, result)
    return result
