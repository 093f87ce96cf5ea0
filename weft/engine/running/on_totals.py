"""Running an op that leaves a reduction pending, in one memory: once, on whole values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch

from ...rules.call import Args, BoundCall, Kwargs
from ...rules.registry import Rule
from ...runtime.memory.lazy_copy import lazy_clone
from ...runtime.traced import hinted, is_traced
from ...sharding.layout import Layout
from ..form import Form
from ..memory.one_memory import spread
from ..op_kind import OpKind, kind_of
from ..sharded import ShardedTensor, Stand, made, requires_grad, stand_of, without_graph, wrap, wrap_total
from ..total import Contributions, Origin, known_total
from ..value import Value
from .on_pieces import run_everywhere
from .quick import Call, quick
from .schedule import OpSchedule

__all__ = ["TotalCall", "total_call"]

_SMALL = 1 << 20
_MOST_KEPT = 8
"""A pending tensor keeps what it was computed from if that is at most so many times as large as itself, or small."""


def total_call(
    call: BoundCall, inputs: tuple[Layout, ...], schedule: OpSchedule, rule: Rule | None
) -> TotalCall | None:
    """How an op runs on whole values, in a memory that lets it leave a reduction pending so, where it can."""
    tensors, kind = call.tensors, kind_of(call.func)
    if not _may_be_total(kind, schedule):
        return None
    # Without its inputs, what each device contributed is not known later: the value then counts as one contribution.
    keeps = kind.viewed is not None or _may_keep(tensors, schedule)
    return TotalCall(call.func, inputs, schedule, rule, quick(call.func, call.kwargs), kind.viewed is not None, keeps)


def _may_be_total(kind: OpKind, schedule: OpSchedule) -> bool:
    if kind.written or kind.outs or kind.viewed not in (None, 0):
        return False
    return kind.viewed is None or all(layout.pending for layout in schedule.outputs)


def _may_keep(tensors: Sequence[torch.Tensor], schedule: OpSchedule) -> bool:
    made = sum(math.prod(hinted(spec.shape)) * spec.dtype.itemsize for spec in schedule.specs if spec is not None)
    kept = sum(math.prod(hinted(x.shape)) * x.itemsize for x in tensors)
    return kept <= _SMALL or kept <= _MOST_KEPT * made


@final
@dataclass(slots=True)
class TotalCall:
    """What is known of such calls of an op."""

    func: torch._ops.OpOverload
    inputs: tuple[Layout, ...]
    schedule: OpSchedule
    rule: Rule | None
    quick: Call
    is_view: bool
    keeps: bool
    """Whether the results keep what they were computed from."""
    form: Form | None = None
    """That of the one result, once it is known."""
    forms: tuple[Form | None, ...] | None = None
    """Those of several results, once they are known; None for what is no tensor."""

    def __call__(self, call: BoundCall, laid: Sequence[ShardedTensor]) -> object:
        """The results, those that are pending with their totals; None where the total of an input is not known."""
        wholes = [known_total(x) if x._layout.pending else x._value.pieces[0] for x in laid]
        if any(whole is None for whole in wholes):
            return None
        result = self._finished(call.on(wholes), call, laid)
        if isinstance(result, ShardedTensor):
            self.form = result._form
        elif isinstance(result, (list, tuple)):
            self.forms = tuple([x._form if isinstance(x, ShardedTensor) else None for x in result])
        return result

    def repeat(self, args: Args, kwargs: Kwargs) -> object:
        """The same for arguments that lie as they did before, all of them by position, whatever is known of them."""
        here, laid, final = list(args), [], ShardedTensor.final
        for i, x in enumerate(args):
            if type(x) is final:
                whole = known_total(x) if x._form.layout.pending else x._value.pieces[0]
                if whole is None:
                    return None
                here[i] = whole
                laid.append(x)
        return self._finished(self.quick(*here, **kwargs), BoundCall(self.func, args, kwargs), laid)

    def again(self, forms: Mapping[int, Form], args: Sequence[object], kwargs: Kwargs) -> object:
        """The contributions to what a call gave, from what it read: values in these forms, since tensors would keep their graphs."""
        given = [made(forms[at], x) if isinstance(x, Value) else x for at, x in enumerate(args)]
        laid = [x for x in given if isinstance(x, ShardedTensor)]
        return self._everywhere(BoundCall(self.func, tuple(given), kwargs), laid)

    def view_again(self, args: Args, kwargs: Kwargs, base: Stand) -> object:
        """The contributions of a view with these arguments besides, from what its base holds now."""
        return self._everywhere(BoundCall(self.func, (base.tensor, *args), kwargs), base)

    def shown_by(self, x: ShardedTensor) -> Stand:
        """What a view of a tensor holds of it; what is detached leaves behind what its tensor was computed of."""
        is_detached = self.func is torch.ops.aten.detach.default and requires_grad(x)
        return Stand(without_graph(x)) if is_detached else stand_of(x)

    def takes(self, tensors: Sequence[ShardedTensor]) -> bool:
        """Whether it can take tensors as they lie: those that are not pending count as if they were."""
        return all(
            x._layout is need or (not x._layout.pending and need.resolved is x._layout)
            for x, need in zip(tensors, self.inputs, strict=True)
        )

    def _everywhere(self, call: BoundCall, laid: Sequence[ShardedTensor] | Stand) -> object:
        if isinstance(laid, Stand):
            laid = [laid.tensor]
            call = call.with_tensors(laid)  # what it was a view of may have become another since
        there = [
            x if x._layout is need else spread(lazy_clone(x._value.pieces[0]), need)
            for x, need in zip(laid, self.inputs, strict=True)
        ]
        return run_everywhere(call, there, self.schedule, self.rule)

    def _finished(self, result: object, call: BoundCall, laid: Sequence[ShardedTensor]) -> object:
        held = self.shown_by(laid[0]) if self.is_view else [without_graph(x) for x in laid]
        call = call.with_tensors([held.tensor] if isinstance(held, Stand) else held)
        # A program that is traced is to compute a value once, and that is the one.
        keeps = self.keeps and (self.is_view or not is_traced())
        origin = Origin(partial(self._everywhere, call, held) if keeps else None, self.is_view)
        shared = laid[0]._value.total.written if self.is_view and laid[0]._value.total is not None else [False]
        if isinstance(result, torch.Tensor):
            return self._labeled(result, 0, origin, shared)
        assert isinstance(result, (tuple, list))
        labeled = [
            self._labeled(value, k, origin, shared) if isinstance(value, torch.Tensor) else value
            for k, value in enumerate(result)
        ]
        return type(result)(labeled)

    def _labeled(self, value: torch.Tensor, k: int, origin: Origin, shared: list[bool]) -> ShardedTensor:
        layout = self.schedule.outputs[k]
        if not layout.pending:
            return wrap((value,), layout, value.shape)
        return wrap_total(value, layout, Contributions(origin, k, value, layout), shared)
