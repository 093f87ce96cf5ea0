"""Repeated calls that resolve what is pending first: in one memory they read the whole value, where that is known."""

from __future__ import annotations

from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.memory.memory_limit import memory_limit
from ...runtime.traced import is_traced
from ...watch.notes import is_watched
from ..memory import memory_of
from ..moves.resolving import moves_alone, note_resolved, tell_resolving
from ..op_kind import OpKind
from ..op_plan import NOT_REPEATED, Repeat
from ..sharded import ShardedTensor, tensor_of
from .once import is_foreseen
from .quick import quick

__all__ = ["on_known_totals"]


def on_known_totals(
    call: BoundCall, kind: OpKind, positions: tuple[int, ...], result: object, brings: bool
) -> Repeat | None:
    """What repeats a call on the whole values of what it resolves, at these positions; None where no call like it can.

    It gives `NOT_REPEATED` where such a value is not known. Whoever looks on is told what is resolved; not so where it `brings` other
    tensors, too.
    """
    if not isinstance(result, ShardedTensor) or result._layout.pending or result._form.is_special:
        return None
    if kind.viewed is not None or not is_foreseen(call.func):
        return None
    if not memory_of(result._layout).runs_whole((result._layout,)):
        return None
    form, op, name = result._form, quick(call.func, call.kwargs), str(call.func)
    others = [at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor) and at not in positions]

    def repeat(args: Known, kwargs: Kwargs) -> object:
        is_told = is_watched()
        if memory_limit() is not None or is_traced() or (is_told and brings):
            return NOT_REPEATED
        here = list(args)
        for at in positions:
            total = here[at]._value.total
            if total is None or total.written[0] or (is_told and not moves_alone(here[at])):
                return NOT_REPEATED
        for at in positions:
            if is_told:
                tell_resolving(here[at], name)
            note_resolved(here[at])
            here[at] = here[at]._value.total.value
        for at in others:
            here[at] = here[at]._value.pieces[0]
        return tensor_of(form, (op(*here, **kwargs),))

    return repeat
