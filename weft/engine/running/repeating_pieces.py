"""Repeated calls on pieces, each in its memory: ops that only read, views, and ops that write to their first argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...rules.call import BoundCall, Known, Kwargs, Op, each_of
from ..form import Form
from ..index_bounds import check_bounds
from ..op_plan import NOT_REPEATED, OpPlan, Repeat
from ..sharded import ShardedTensor, all_sharded, as_viewed, tensor_of
from ..strides.result_strides import Strided
from ..total import note_write
from ..value import Value
from ..views.view import beginning
from ..writes.overlapping import lie_apart, refusing_overlaps
from .on_pieces import run_everywhere
from .once import is_foreseen
from .quick import Call
from .runs import made_by, runs_of
from .schedule import OpSchedule

__all__ = ["repeat_on_pieces", "repeat_views", "repeat_writes"]

_make: Callable[..., ShardedTensor] = torch.Tensor._make_wrapper_subclass
_is_inferring = torch.is_inference_mode_enabled


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
    if runs.alone is not None:
        return _of_one_piece(runs.alone, values, strided, result)
    parts = [_gathering(k, x, each, schedule) for k, (x, each) in enumerate(zip(values, strided, strict=True))]
    first, gather, everywhere = parts[0], _gathered_in(result), runs.everywhere

    def repeat(args: Known, kwargs: Kwargs) -> object:
        results = everywhere(args, kwargs)
        if not several:
            return first(results)
        return gather([part(of) for part, of in zip(parts, zip(*results, strict=True), strict=True)])

    return repeat


def _of_one_piece(apply: Call, results: Sequence[object], strided: Sequence[Strided | None], result: object) -> Repeat:
    """The least that a call can cost which runs once."""
    labels = [_labelling(x, each) for x, each in zip(results, strided, strict=True)]
    first, gather = labels[0], _gathered_in(result)
    if isinstance(result, ShardedTensor):
        return lambda args, kwargs: first(apply(args, kwargs))

    def repeat(args: Known, kwargs: Kwargs) -> object:
        return gather([label(piece) for label, piece in zip(labels, apply(args, kwargs), strict=True)])

    return repeat


def _gathered_in(result: object) -> Callable[[list[object]], object]:
    """What several results are in: a list, or a tuple."""
    return list if isinstance(result, list) else tuple


def _labelling(result: object, strided: Strided | None) -> Callable[[Any], object]:
    """What makes a result of its one piece; what is no tensor stays as it is."""
    if not isinstance(result, ShardedTensor) or strided is None:
        return lambda _: result
    form, made_with = result._form, result._form.made_with
    strides, ordered = strided.pieces[0], strided.ordered

    def label(piece: torch.Tensor) -> object:
        value = Value()
        value.pieces = (piece,) if piece.stride() == strides else ordered((piece,))
        tensor = _make(*made_with)
        tensor._form = form
        tensor._value = value
        return tensor

    return label


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
    if runs.alone is not None and not several and size == given:
        return _view_of_one_piece(runs.alone, *forms[0])
    gather, everywhere = _gathered_in(result), runs.everywhere

    def repeat(args: Known, kwargs: Kwargs) -> object:
        base = args[0]
        if base._value.resolved is not None or _is_inferring() is not base.is_inference():
            return NOT_REPEATED
        try:
            results = everywhere(args, kwargs)
        except RuntimeError:  # pieces that lie otherwise, of which there is no such view
            if base._value.source is not None:
                raise  # or they were waited for in vain
            return NOT_REPEATED
        offset = base.storage_offset()
        if size != given:
            offset = offset * given // size
        if not several:
            form, ahead = forms[0]
            shown: Any = tensor_of(form, tuple([results[run] for run in made[0]]), offset + ahead)
        else:
            columns = zip(forms, made, zip(*results, strict=True), strict=True)
            shown = gather(
                [tensor_of(form, tuple([of[run] for run in by]), offset + ahead) for (form, ahead), by, of in columns]
            )
        base._value.note_views(shown)
        return shown

    return repeat


def _view_of_one_piece(apply: Call, form: Form, ahead: int) -> Repeat:
    """One view of what this process has of a tensor, in its one piece: of all ops, those that come most often."""
    last = (0, form.made_at(ahead) if ahead else form.made_with)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        nonlocal last
        base = args[0]
        held = base._value
        infers, begins = held.as_viewed or as_viewed(base)
        if held.resolved is not None or _is_inferring() is not infers:
            return NOT_REPEATED
        try:
            piece = apply(args, kwargs)
        except RuntimeError:  # a piece that lies otherwise, of which there is no such view
            if held.source is not None:
                raise  # or it was waited for in vain
            return NOT_REPEATED
        before, made_with = last
        if before != begins:
            offset = begins + ahead
            last = _, made_with = begins, form.made_at(offset) if offset else form.made_with
        value = Value()
        value.pieces = (piece,)
        shown = _make(*made_with)
        shown._form = form
        shown._value = value
        if held.lent_by is not None:
            held.note_views(shown)
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
    write = runs.alone or runs.everywhere
    others = [at for at, x in enumerate(call.args) if at and isinstance(x, torch.Tensor)]
    refuse = refusing_overlaps(call.func) if others else None
    only = others[0] if len(others) == 1 else 0

    def repeat(args: Known, kwargs: Kwargs) -> object:
        written = args[0]
        is_apart = refuse is None or (only and lie_apart(written, args[only]))
        if not is_apart and refuse is not None and refuse(written, [args[at] for at in others]):
            return NOT_REPEATED
        note_write((written,))
        write(args, kwargs)
        return written

    return repeat
