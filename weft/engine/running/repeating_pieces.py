"""Repeated calls on pieces, each in its memory: ops that only read, views, and ops that write to their first argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...rules.call import BoundCall, Known, Kwargs, Op, each_of
from ..index_bounds import check_bounds
from ..op_plan import NOT_REPEATED, OpPlan, Repeat
from ..sharded import ShardedTensor, all_sharded, tensor_of
from ..strides.result_strides import Strided
from ..total import note_write
from ..views.view import beginning
from ..writes.overlapping import refuse_overlaps
from .on_pieces import run_everywhere
from .once import is_foreseen
from .runs import made_by, runs_of
from .schedule import OpSchedule

__all__ = ["repeat_on_pieces", "repeat_views", "repeat_writes"]


def repeat_on_pieces(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A call that only reads, and does the same at every place, with what is there of its arguments."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    several = isinstance(result, (list, tuple))
    values = each_of(result)
    if not all(x is None or isinstance(x, (ShardedTensor, int)) for x in values) or not is_foreseen(call.func):
        return None
    strided = schedule.strided
    is_alike = schedule.places and rule.local is None and not plan.bounds
    in_parts = any(part is not None for place in schedule.places for part in place.parts)
    is_told = all(isinstance(x, ShardedTensor) is (each is not None) for x, each in zip(values, strided, strict=True))
    runs = runs_of(call, plan, schedule) if is_alike and not in_parts and is_told else None
    if runs is None:
        return _everywhere(call.func, schedule, plan)
    parts = [_gathering(k, x, each, schedule) for k, (x, each) in enumerate(zip(values, strided, strict=True))]
    first, gather = parts[0], type(result)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        results = runs(args, kwargs)
        if not several:
            return first(results)
        return gather([part(of) for part, of in zip(parts, zip(*results, strict=True), strict=True)])  # type: ignore[call-arg]

    return repeat


def _gathering(k: int, result: object, strided: Strided | None, schedule: OpSchedule) -> Callable[[Any], object]:
    """What makes a result of what the runs have made of it; what is no tensor stays as it is."""
    if not isinstance(result, ShardedTensor) or strided is None:
        return lambda _: result
    form, by, ordered = result._form, made_by(k, schedule), strided.ordered
    if by == list(range(len(schedule.places))):
        return lambda of: tensor_of(form, ordered(tuple(of)))
    return lambda of: tensor_of(form, ordered(tuple([of[run] for run in by])))


def _everywhere(func: Op, schedule: OpSchedule, plan: OpPlan) -> Repeat:
    """The same for calls whose places differ in more than what they read."""

    def repeat(args: Known, kwargs: Kwargs) -> object:
        call = BoundCall(func, args, kwargs)
        laid = all_sharded(call.tensors)
        if plan.bounds:
            check_bounds(plan.bounds, laid, laid)
        return run_everywhere(call, laid, schedule, plan.rule)

    return repeat


def repeat_views(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A view whose pieces are views of the pieces of what it shows."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    several = isinstance(result, (list, tuple))
    x = call.args[0]
    if rule.local is not None or not isinstance(x, ShardedTensor):
        return None
    values = all_sharded(each_of(result))
    if not values or any(y._form.is_special for y in values):
        return None
    runs = runs_of(call, plan, schedule)
    if runs is None or not schedule.places:
        return None
    made = [made_by(k, schedule) for k in range(len(schedule.outputs))]
    forms = [(y._form, int(y.storage_offset()) - beginning(x, y.dtype)) for y in values]
    size, given = forms[0][0].dtype.itemsize, x.dtype.itemsize  # of a view that has other elements than what it shows
    gather = type(result)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        base = args[0]
        if base._value.resolved is not None or (torch.is_inference_mode_enabled() and not base.is_inference()):
            return NOT_REPEATED
        try:
            results = runs(args, kwargs)
        except RuntimeError:  # pieces that lie otherwise, of which there is no such view
            return NOT_REPEATED
        offset = base.storage_offset()
        if size != given:
            offset = offset * given // size
        if not several:
            form, ahead = forms[0]
            shown: Any = tensor_of(form, tuple([results[run] for run in made[0]]), offset + ahead)
        else:
            columns = zip(forms, made, zip(*results, strict=True), strict=True)
            shown = gather(  # type: ignore[call-arg]
                [tensor_of(form, tuple([of[run] for run in by]), offset + ahead) for (form, ahead), by, of in columns]
            )
        base._value.note_views(shown)
        return shown

    return repeat


def repeat_writes(call: BoundCall, plan: OpPlan) -> Repeat | None:
    """A call that writes to the pieces of its first argument."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    if rule.local is not None or rule.of_nothing is not None or plan.bounds or not schedule.places:
        return None
    runs = runs_of(call, plan, schedule)
    if runs is None:
        return None
    others = len(call.tensors) > 1

    def repeat(args: Known, kwargs: Kwargs) -> object:
        if others:
            refuse_overlaps(args[0], [x for x in args if isinstance(x, torch.Tensor)])
        note_write(args[:1])
        runs(args, kwargs)
        return args[0]

    return repeat
