"""Repeated calls on whole values, in one memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...rules.call import BoundCall, Known, Kwargs, each_of
from ..form import Form
from ..memory import memory_of
from ..op_kind import OpKind
from ..op_plan import NOT_REPEATED, Repeat
from ..sharded import ShardedTensor, all_sharded, as_sharded, as_viewed, begins_at, tensor_of
from ..total import note_write
from ..value import Value
from ..views.copy_views import is_observed
from .once import is_foreseen
from .quick import Call, quick
from .runs import on_first_pieces

__all__ = ["repeat_alias", "repeat_on_whole"]

_make: Callable[..., ShardedTensor] = torch.Tensor._make_wrapper_subclass
_is_inferring = torch.is_inference_mode_enabled
_modes = torch._C._len_torch_dispatch_stack
_strided = torch.as_strided  # in less time than the method of tensors
_SLICE = torch.ops.aten.slice.Tensor


def repeat_on_whole(call: BoundCall, kind: OpKind, result: object) -> Repeat | None:
    """In one memory, a call on whole values."""
    apply = on_first_pieces(call.func, call.args, call.kwargs)
    if kind.written:

        def write(args: Known, kwargs: Kwargs) -> object:
            written = args[0]
            note_write((written,))
            apply(args, kwargs)
            return written

        return write
    if not is_foreseen(call.func):
        return None
    if kind.viewed is not None:
        return _slice_of_whole(call, apply, result) or _views_of_whole(call, apply, result)
    if isinstance(result, ShardedTensor):
        return _one_result(call, apply, result._form)
    if not isinstance(result, (list, tuple)):
        return None
    forms, several = [x._form if isinstance(x, ShardedTensor) else None for x in result], type(result)

    def repeat_all(args: Known, kwargs: Kwargs) -> object:
        made = zip(forms, apply(args, kwargs), strict=True)
        return several([whole if form is None else tensor_of(form, (whole,)) for form, whole in made])

    return repeat_all


def _one_result(call: BoundCall, apply: Call, form: Form) -> Repeat:
    """One new tensor: of one or two tensors and nothing else, as most are, it is made with one step less."""
    made_with, op = form.made_with, quick(call.func, call.kwargs)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        value = Value()
        value.pieces = (apply(args, kwargs),)
        tensor = _make(*made_with)
        tensor._form = form
        tensor._value = value
        return tensor

    def of_one(args: Known, _: Kwargs) -> object:
        value = Value()
        value.pieces = (op(args[0]._value.pieces[0]),)
        tensor = _make(*made_with)
        tensor._form = form
        tensor._value = value
        return tensor

    def of_two(args: Known, _: Kwargs) -> object:
        value = Value()
        value.pieces = (op(args[0]._value.pieces[0], args[1]._value.pieces[0]),)
        tensor = _make(*made_with)
        tensor._form = form
        tensor._value = value
        return tensor

    if call.kwargs or len(call.args) > 2 or not all(isinstance(x, ShardedTensor) for x in call.args):
        return repeat
    return of_one if len(call.args) == 1 else of_two


def _views_of_whole(call: BoundCall, apply: Call, result: object) -> Repeat | None:
    values = all_sharded(each_of(result))
    if not values or any(x._form.is_special for x in values):
        return None
    forms, gather = [x._form for x in values], type(result)
    several, x = isinstance(result, (list, tuple)), as_sharded(call.args[0])
    if not several and forms[0].dtype.itemsize == x.dtype.itemsize:
        return _view_of_whole(call, apply, forms[0], begins_at(values[0]) - begins_at(x))

    def repeat(args: Known, kwargs: Kwargs) -> object:
        base = args[0]
        if _is_inferring() is not base.is_inference():
            return NOT_REPEATED
        wholes = apply(args, kwargs)
        made = zip(forms, wholes if several else (wholes,), strict=True)
        shown = [tensor_of(form, (whole,), whole.storage_offset()) for form, whole in made]
        base._value.note_views(shown)
        return gather(shown) if several else shown[0]  # type: ignore[call-arg]

    return repeat


def repeat_alias(call: BoundCall, result: object) -> Repeat | None:
    """In one memory, a call whose views would be copies with memories apart: here they are none, and whoever looks on is told so."""
    x = as_sharded(call.args[0])
    if memory_of(x._layout).pieces_are_shards or x._layout.pending or x._form.is_special or not x._value.pieces:
        return None
    apply = on_first_pieces(call.func, call.args, call.kwargs)
    views = _slice_of_whole(call, apply, result) or _views_of_whole(call, apply, result)
    if views is None:
        return None
    return lambda args, kwargs: NOT_REPEATED if is_observed() else views(args, kwargs)


def _slice_of_whole(call: BoundCall, apply: Call, result: object) -> Repeat | None:
    """A part of a whole value: its strides, and how far ahead it begins, are known, and torch need not find them again."""
    if call.func is not _SLICE or not isinstance(result, ShardedTensor) or result._form.is_special:
        return None
    form = result._form
    shape, strides = form.shape, form.strides
    (base,), (part,) = as_sharded(call.args[0])._value.pieces, result._value.pieces
    ahead = begins_at(part) - begins_at(base)
    made_with = form.made_at(ahead)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        base = args[0]
        held = base._value
        infers, begins = held.as_viewed or as_viewed(base)
        if _is_inferring() is not infers:
            return NOT_REPEATED
        whole = held.pieces[0]
        # Whoever looks on is to see what was called.
        is_seen = type(whole) is not torch.Tensor or _modes()
        part = apply(args, kwargs) if is_seen else _strided(whole, shape, strides, begins + ahead)
        if begins:
            shown = tensor_of(form, (part,), begins + ahead)
        else:
            value = Value()
            value.pieces = (part,)
            shown = _make(*made_with)
            shown._form = form
            shown._value = value
        if held.lent_by is not None:
            held.note_views(shown)
        return shown

    return repeat


def _view_of_whole(call: BoundCall, apply: Call, form: Form, ahead: int) -> Repeat:
    """One view of a whole value, which begins so far ahead of it: of all ops, those that come most often."""
    made_with = form.made_at(ahead) if ahead else form.made_with
    alone = None if call.kwargs or len(call.args) > 1 else quick(call.func)

    def repeat(args: Known, kwargs: Kwargs) -> object:
        base = args[0]
        held = base._value
        infers, begins = held.as_viewed or as_viewed(base)
        if _is_inferring() is not infers:
            return NOT_REPEATED
        value = Value()
        value.pieces = (apply(args, kwargs) if alone is None else alone(held.pieces[0]),)
        shown = _make(*form.made_at(begins + ahead)) if begins else _make(*made_with)
        shown._form = form
        shown._value = value
        if held.lent_by is not None:
            held.note_views(shown)
        return shown

    return repeat
