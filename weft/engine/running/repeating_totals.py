"""Repeated calls with something pending: in one memory they run once, where what is pending is known whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ...rules.call import BoundCall, Known, Kwargs
from ...runtime.traced import is_traced
from ..form import Form
from ..moves.resolving import is_expanded, note_computed, note_turned
from ..op_plan import NOT_REPEATED, Repeat
from ..sharded import ShardedTensor, made
from ..total import Contributions, Origin, SoleContributions, Total, part_pieces
from ..value import Value
from ..views.view_results import noted, view_again
from .on_totals import TotalCall
from .quick import Call
from .runs import on_first_pieces

__all__ = ["by_totals", "pending_view"]

_make: Callable[..., ShardedTensor] = torch.Tensor._make_wrapper_subclass
_is_inferring = torch.is_inference_mode_enabled
_modes = torch._C._len_torch_dispatch_stack


def by_totals(call: BoundCall, total: TotalCall | None, waiting: tuple[int, ...], recipe: Repeat | None) -> Repeat:
    """A call with something pending at these positions; `recipe` is what runs it on contributions."""
    if total is not None and total.is_view:
        return _view(call, total)
    if total is not None and total.form is not None and total.form.layout.pending and not waiting:
        return _left_pending(call, total, total.form)
    func, run = call.func, None if total is None else _run(call, total)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        if run is not None and is_traced():
            return NOT_REPEATED
        is_told = False
        for at in waiting:
            value = args[at]._value
            turned = value.turned
            if turned is not None:
                is_told |= turned.is_resolved
                if is_expanded(args[at]):
                    return NOT_REPEATED  # the smaller one is resolved in its stead
            is_told |= value.resolved is not None
        result = None if run is None else run(args, kwargs)
        if result is None:
            if recipe is None:
                return NOT_REPEATED
            result = recipe(args, kwargs)
        if is_told:
            note_computed(BoundCall(func, args, kwargs), result)
        return result

    return repeat


def _again(call: BoundCall, total: TotalCall) -> Call:
    """What computes the contributions to what such a call gave, from the values of its tensors."""
    return partial(total.again, {at: x._form for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)})


def _left_pending(call: BoundCall, total: TotalCall, form: Form) -> Repeat:
    """A call on tensors of which nothing is pending that leaves its one result so."""
    apply, again, keeps = on_first_pieces(call.func, call.args, call.kwargs), _again(call, total), total.keeps
    layout, made_with, final = form.layout, form.made_with, ShardedTensor.final
    is_of_first = [isinstance(x, ShardedTensor) for x in call.args] == [True, *[False] * (len(call.args) - 1)]

    def repeat(args: Known, kwargs: Kwargs) -> object:
        if _modes() and is_traced():
            return NOT_REPEATED
        whole = apply(args, kwargs)
        value = Value()
        if not keeps:
            read = None
        elif is_of_first:
            read = [args[0]._value, *args[1:]]
        else:
            read = [x._value if type(x) is final else x for x in args]
        value.source = SoleContributions(again, read, kwargs, whole, layout)
        value.total = Total(whole, [False])
        tensor = _make(*made_with)
        tensor._form = form
        tensor._value = value
        return tensor

    return repeat


def pending_view(call: BoundCall, views: Repeat | None) -> Repeat | None:
    """A view of a pending tensor whose contributions are there, each in its memory; `views` shows them."""
    if views is None:
        return None
    func = call.func

    def repeat(args: Known, kwargs: Kwargs) -> object:
        x: ShardedTensor = args[0]
        if x._value.turned is not None and is_expanded(x):
            return NOT_REPEATED
        part_pieces(x)
        result = views(args, kwargs)
        if not isinstance(result, ShardedTensor):
            return result if result is NOT_REPEATED else noted(BoundCall(func, args, kwargs), result)
        note_turned(func, result, x, partial(view_again, func, args[1:], kwargs))
        return result

    return repeat


def _run(call: BoundCall, total: TotalCall) -> Repeat:
    """What gives the results, those that are pending with their totals; None where something pending is not known whole."""
    form, forms, op, keeps = total.form, total.forms, total.quick, total.keeps
    places = [(at, bool(x._layout.pending)) for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)]
    if form is None and forms is None:
        return total.repeat
    again = _again(call, total)

    def run(args: Known, kwargs: Kwargs) -> object:
        here, read = list(args), list(args)
        for at, is_pending in places:
            value = args[at]._value
            read[at] = value
            if is_pending:
                known = value.total
                if known is None or known.written[0]:
                    return total.repeat(args, kwargs)
                here[at] = known.value
            else:
                here[at] = value.pieces[0]
        result = op(*here, **kwargs)
        origin = Origin(partial(again, read, kwargs) if keeps else None)
        if form is not None:
            return _labeled(form, result, 0, origin)
        each = enumerate(zip(forms or (), result, strict=True))
        return type(result)(
            [x if of is None else _labeled(of, x, k, origin, x.storage_offset()) for k, (of, x) in each]
        )

    return run


def _labeled(form: Form, whole: torch.Tensor, k: int, origin: Origin, offset: int = 0) -> ShardedTensor:
    """A result that was computed whole, which may be pending."""
    value = Value()
    if form.layout.pending:
        value.source = Contributions(origin, k, whole, form.layout)
        value.total = Total(whole, [False])
    else:
        value.pieces = (whole,)
    return made(form, value, offset)


def _view(call: BoundCall, total: TotalCall) -> Repeat:
    """A view of a pending tensor, its first argument."""
    func, form, op = call.func, total.form, total.quick

    def repeat(args: Known, kwargs: Kwargs) -> object:
        x: ShardedTensor = args[0]
        value = x._value
        if value.resolved is not None or (value.turned is not None and is_expanded(x)) or is_traced():
            return NOT_REPEATED  # a view of what has been resolved is resolved too
        if _is_inferring() is not x.is_inference():
            return NOT_REPEATED
        known = value.total
        if form is None or known is None or known.written[0]:
            result = total.repeat(args, kwargs)
            return NOT_REPEATED if result is None else noted(BoundCall(func, args, kwargs), result)
        whole = op(known.value, *args[1:], **kwargs)
        stand = total.shown_by(x)
        origin = Origin(partial(total.view_again, args[1:], kwargs, stand), is_view=True)
        shown = Value()
        shown.source = Contributions(origin, 0, whole, form.layout)
        shown.total = Total(whole, known.written)
        view = made(form, shown, int(whole.storage_offset()))
        value.is_viewed = True
        note_turned(func, view, stand.tensor, partial(view_again, func, args[1:], kwargs))
        return view

    return repeat
