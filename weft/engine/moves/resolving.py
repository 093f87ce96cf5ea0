"""Resolving pending tensors: each once, and those that are views of one another together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch

from ...rules.call import BoundCall, Kwargs, Op
from ...runtime.strides import has_single_dims, has_windows
from ...watch import comm_log
from ..memory import memory_of
from ..op_kind import is_elementwise, kind_of
from ..sharded import ShardedTensor, requires_grad, without_graph
from ..total import last_write
from ..value import UNMADE, Unmade
from .movement import moved
from .resolved import is_current, remember_resolved
from .telling import note_move

__all__ = [
    "Turned",
    "is_expanded",
    "is_resolved",
    "kept_resolved",
    "lying_as",
    "moves_alone",
    "note_computed",
    "note_resolved",
    "note_turned",
    "resolve",
    "resolved_for",
    "tell_resolving",
]

aten = torch.ops.aten

_TURNS = frozenset(
    {
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.view.default,
        aten.expand.default,
        aten.alias.default,
        aten.detach.default,
    }
)
"""Views of all elements: what is resolved of one is resolved of the other."""


@final
class Turned:
    """Which pending tensor another is a view of, while that has the memory it had, and the view."""

    __slots__ = ("again", "base", "is_resolved", "memory", "writes")

    def __init__(
        self,
        base: ShardedTensor,
        memory: object,
        again: Callable[[ShardedTensor], ShardedTensor],
        writes: int | None = None,
        is_resolved: bool = False,
    ) -> None:
        self.base, self.memory, self.again = base, memory, again
        self.writes = writes
        """Where it is no view, but was computed of one: how many writes there had been, after any of which it is another."""
        self.is_resolved = is_resolved
        """Whether what it was computed of had been resolved by then."""

    @property
    def holds(self) -> bool:
        """Whether it still is what it was when this was noted."""
        return _memory(self.base) is self.memory and self.writes in (None, last_write())


def note_turned(
    func: torch._ops.OpOverload,
    view: ShardedTensor,
    base: ShardedTensor,
    again: Callable[[ShardedTensor], ShardedTensor],
) -> None:
    """Notes that a tensor is a view of all elements of a pending one, or of some of one that is resolved already."""
    if base._layout.pending and func in _TURNS:
        kept = without_graph(base) if func is aten.detach.default and requires_grad(base) else base
        view._value.turned = Turned(kept, _memory(base), again)
    elif base._layout.pending and is_resolved(base):
        view._value.turned = Turned(base, _memory(base), again, last_write(), is_resolved=True)


def _memory(x: ShardedTensor) -> object:
    """An object that a tensor keeps as long as it keeps its memory."""
    return x._value.pieces if x._value.total is None else x._value.total


def note_computed(call: BoundCall, result: object) -> None:
    """Notes what a pending result was computed of, element by element, where that is resolved for less, or was already."""
    if not isinstance(result, ShardedTensor) or not result._layout.pending:
        return
    func, args = call.func, call.args
    if func is aten.cat.default:
        _note_joined(call, result)
    if not is_elementwise(func) or not kind_of(func).is_pure:
        return
    given = sum(isinstance(x, torch.Tensor) for x in args)
    waiting = [(at, x) for at, x in enumerate(args) if isinstance(x, ShardedTensor) and x._layout.pending]
    if not waiting:
        return
    (place, x), *others = waiting
    if given == 1 and is_expanded(x) and x._layout is result._layout and x.shape == result.shape:
        _note_expanded(call, result, x, place)
    elif all(is_resolved(each) for _, each in waiting):

        def again(first: ShardedTensor) -> ShardedTensor:
            here = list(args)
            here[place] = first
            for at, other in others:
                here[at] = resolve(other, str(func))
            return _called(func, here, call.kwargs)

        result._value.turned = Turned(x, _memory(x), again, last_write(), is_resolved=True)


def _note_joined(call: BoundCall, result: ShardedTensor) -> None:
    """Notes that some of what was joined is resolved already, as a cache is that grows by a token: the rest will be, alone."""
    parts, func = call.tensor_list("tensors"), call.func
    known = [x for x in parts if isinstance(x, ShardedTensor) and x._layout.pending and is_resolved(x)]
    if not known:
        return

    def again(_: ShardedTensor) -> ShardedTensor:
        here = [resolve(x, str(func)) if isinstance(x, ShardedTensor) and x._layout.pending else x for x in parts]
        return _called(func, (here, *call.args[1:]), call.kwargs)

    result._value.turned = Turned(known[0], _memory(known[0]), again, last_write(), is_resolved=True)


def _note_expanded(call: BoundCall, result: ShardedTensor, x: ShardedTensor, at: int) -> None:
    func, args = call.func, call.args
    turned = x._value.turned
    assert turned is not None

    def again(base: ShardedTensor) -> ShardedTensor:
        here = list(args)
        here[at] = turned.again(base)
        return _called(func, here, call.kwargs)

    result._value.turned = Turned(turned.base, turned.memory, again, last_write())


def _called(func: Op, args: Sequence[object], kwargs: Kwargs) -> ShardedTensor:
    result = func(*args, **kwargs)
    assert isinstance(result, ShardedTensor)
    return result


def is_expanded(x: ShardedTensor) -> bool:
    """Whether a pending tensor is an expanded view of a smaller one, or computed of one, which is resolved in its stead."""
    return x._value.turned is not None and x._value.turned.base.numel() < x.numel() and x._value.turned.holds


def is_resolved(x: ShardedTensor) -> bool:
    """Whether the resolved form of a pending tensor is there, or computed without moving anything.

    What moves depends on that; the layouts that are chosen never do.
    """
    if _is_kept_resolved(x):
        return True
    turned = x._value.turned
    return turned is not None and turned.is_resolved and turned.holds


def _is_kept_resolved(x: ShardedTensor) -> bool:
    return x._value.resolved is not None and is_current(x)


def resolve(x: ShardedTensor, op: str) -> ShardedTensor:
    """A pending tensor with nothing pending; it is kept, for the ops after this one and for other views of the same."""
    result = kept_resolved(x)
    if result is not None:
        return result
    if x._value.turned is not None and x._value.turned.holds:
        result = x._value.turned.again(resolve(x._value.turned.base, op))
    if result is None or result._layout is not x._layout.resolved:
        result = moved(x, x._layout.resolved, op, implicit=True)
    remember_resolved(x, result)
    if x._value.turned is not None and x._value.turned.is_resolved:
        x._value.turned = None  # what it was computed of need not stay for its sake
    return result


def kept_resolved(x: ShardedTensor) -> ShardedTensor | None:
    """The resolved form of a pending tensor, if an operation has needed it."""
    resolved = x._value.resolved
    if resolved is None or not is_current(x):
        return None
    if not isinstance(resolved, Unmade):
        return resolved
    again = memory_of(x._layout).relabeled(x, x._layout.resolved, None)
    if again is not None:
        remember_resolved(x, again)
    return again


def moves_alone(x: ShardedTensor) -> bool:
    """Whether resolving a pending tensor moves at most one: itself, or what it is a view of."""
    while not _is_kept_resolved(x):
        turned = x._value.turned
        if turned is None or not turned.holds:
            return True
        if turned.writes is not None:
            return False
        x = turned.base
    return True


def tell_resolving(x: ShardedTensor, op: str) -> None:
    """Tells whoever looks on what resolving a pending tensor moves, where that is one tensor at most."""
    while not _is_kept_resolved(x):
        turned = x._value.turned
        if turned is None or not turned.holds:
            note_move(x, x._layout.resolved, op)
            comm_log.note_end()
            return
        x = turned.base


def note_resolved(x: ShardedTensor) -> None:
    """Notes that a pending tensor which is known whole was needed resolved, and no tensor was made of it."""
    while not _is_kept_resolved(x):
        remember_resolved(x, UNMADE)
        turned = x._value.turned
        if turned is None or not turned.holds:
            return
        x = turned.base


def resolved_for(func: Op, x: ShardedTensor) -> ShardedTensor:
    """A pending tensor with nothing pending, as an op reads it."""
    return lying_as(x, resolve(x, str(func)))


def lying_as(x: ShardedTensor, resolved: ShardedTensor) -> ShardedTensor:
    """What a pending tensor was resolved to, lying as that does, a view maybe, where that shows in what ops give."""
    shape, strides = tuple(x.shape), x.stride()
    if resolved.stride() == strides or not (has_windows(shape, strides) or has_single_dims(shape, strides)):
        return resolved
    return memory_of(resolved._layout).laid_like(resolved, x)
