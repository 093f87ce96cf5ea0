"""Repeated calls that join a list of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import torch

from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.memory.accelerator import turns
from ..op_kind import kind_of
from ..op_plan import OpPlan, Repeat
from ..sharded import ShardedTensor, all_sharded, tensor_of
from .quick import quick
from .runs import made_by, reader_of

__all__ = ["is_list_of", "repeat_list"]


def is_list_of(value: object, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an argument is a list of just these tensors."""
    return isinstance(value, list) and len(value) == len(tensors) and all(map(is_, value, tensors))


def repeat_list(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A call that only reads a list of tensors, as they lie, and makes one of them: they are joined."""
    tensors = all_sharded(call.tensors)
    if not kind_of(call.func).is_pure or not isinstance(result, ShardedTensor) or plan.total is not None or plan.once:
        return None
    if any(
        x._layout is not need or x._layout.pending or x._form.is_special
        for x, need in zip(tensors, plan.inputs, strict=True)
    ):
        return None
    op, form = quick(call.func), result._form
    if plan.whole:
        return lambda args, kwargs: tensor_of(
            form,
            (op([x._value.pieces[0] for x in args[0]], *args[1:], **kwargs),),
        )
    schedule, rule = plan.schedule, plan.rule
    if schedule is None or rule is None or rule.local is not None or rule.local_args is not None or plan.bounds:
        return None
    (strided,), places = schedule.strided, schedule.places
    if strided is None or any(place.parts != (None,) for place in places) or not places:
        return None
    readers = [reader_of([place.reads[k] for place in places]) for k in range(len(tensors))]
    made, ordered = made_by(0, schedule), strided.ordered

    def repeat(args: Known, kwargs: Kwargs) -> object:
        columns = [read(x._value.pieces) for read, x in zip(readers, args[0], strict=True)]
        results = [op([column[k] for column in columns], *args[1:], **kwargs) for k in turns(len(places))]
        return tensor_of(form, ordered(tuple([results[run] for run in made])))

    return repeat
