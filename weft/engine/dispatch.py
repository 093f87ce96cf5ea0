"""Dispatch: every torch op on sharded tensors comes here. A call like one before is repeated; others are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from operator import is_

import torch

from ..caches import cached
from ..errors import WeftError
from ..rules.call import REFUSALS, Args, BoundCall, Kwargs, Op
from ..rules.registry import rule_for
from ..runtime.spans import OP, Spans, span
from ..runtime.traced import is_traced
from ..watch.call_site import call_site
from ..watch.policy import Warned
from .advice.drift import may_drift, watched
from .dispatch_keys import let_in
from .execute import gathered, run_by_rule
from .form import Form
from .handlers import handlers, may_run_by_rule
from .kept import forget_written, share_nothing
from .moves.asynchrony import detached, is_on_its_way
from .moves.gradient_home import bring_gradient_home
from .moves.movement import with_memory
from .moves.plain_gradient import keep_gradient_plain
from .moves.resolving import note_computed, resolve, resolved_for
from .op_kind import kind_of
from .op_plan import FALSE, NOT_REPEATED, TRUE, OpPlan, decided, key_of, plans
from .programs.compiling import left_mode
from .ragged.running import of_rows
from .ragged.running_alone import of_alone
from .running.recording_calls import recorded
from .running.refusals import tell_others
from .running.repeating import repeat_of, resolved_first
from .scaling import scales_beyond
from .sharded import ShardedTensor, as_sharded, made
from .strategy import unconsidered
from .strides.restriding import as_op_gives
from .total import note_write
from .views.conjugation import keep_marks
from .views.copy_views import refresh, shows_another, tell_writes, told_before, write_through
from .views.folded import folded_ops
from .writes.counting import count_writes
from .writes.settling import settle_totals
from .writes.turned import note_views_of_turned, refuse_stale, refuse_turned
from .writes.writing import shares_places, store, write_out, write_whole, written_tensors
from .wrong_calls import LENIENT, OF_PROCESSES, STUMBLES, let_torch_say, refuse_wrong, refused_collective

__all__ = ["planned", "torch_dispatch"]

_heeding = Spans.heeding
_repeats = plans.repeats
_known = _repeats.get
_onlookers = torch._C._len_torch_dispatch_stack
_DETACH = torch.ops.aten.detach.default
_OF_OTHER_DTYPE = torch.ops.aten.view.dtype
"""Whose results are inference tensors where they are made in inference mode, whatever they show."""
_SAID = (int, bool)
_HEEDED: tuple[type, ...] = (ShardedTensor,)
"""Given for the types of a call of which those who profile, or want to be warned, have been told."""


def torch_dispatch(
    cls: type[ShardedTensor], func: Op, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> object:
    """What torch calls for every op on sharded tensors."""
    if _heeding and types is not _HEEDED:
        return _heeded(BoundCall(func, args, kwargs or {}))
    if func is _DETACH and is_on_its_way(args[0]):
        return detached(args[0])
    if kwargs is None:
        kwargs = {}
    if _onlookers():
        result = recorded(func, args, kwargs)
        if result is not NotImplemented:
            return result
    key: tuple[object, ...] | None
    try:
        # Most ops take a tensor, or two, or one and a dim and more, as slices do: their keys are made here, as `key_of` makes them, since
        # to call for them would take as long again.
        count = 0 if kwargs else len(args)
        if count == 1 and type(x := args[0]) is cls:
            key = (id(func), x._form)
        elif count == 2 and type(x := args[0]) is cls and type(y := args[1]) is cls:
            key = (id(func), x._form, y._form)
        elif (
            count == 3 and type(x := args[0]) is cls and type(dim := args[1]) is int and type(last := args[2]) in _SAID
        ):
            key = (id(func), x._form, dim, last if type(last) is int else TRUE if last else FALSE)
        elif (
            count == 4
            and type(x := args[0]) is cls
            and type(dim := args[1]) is type(y := args[2]) is type(last := args[3]) is int
        ):
            key = (id(func), x._form, dim, y, last)
        else:
            key = key_of(func, args, kwargs)
        repeat = _known(key)
    except TypeError:  # sizes and numbers that a compiler has not settled have no hash
        key = repeat = None
    if repeat is not None:
        try:
            result = repeat(args, kwargs)
        except REFUSALS as error:
            # Some kernels cannot take lazy copies, which the long way knows to copy for them.
            if "COW.cpp" not in str(error) or func._schema.is_mutable:
                tell_others(error, BoundCall(func, args, kwargs).tensors)
                raise
            result = NOT_REPEATED
        if result is not NOT_REPEATED:
            return result
    call = BoundCall(func, args, kwargs)
    call.key = key
    try:
        with unconsidered():
            return _at_length(call, is_kept=key is not None)
    except REFUSALS as error:
        tell_others(error, call.tensors)
        raise


def _heeded(call: BoundCall) -> object:
    """What a call gives that somebody who profiles is told of, or who asks to be told where tensors lie worse after it."""

    def run() -> object:
        return torch_dispatch(ShardedTensor.final, call.func, _HEEDED, call.args, call.kwargs)

    with span(f"{OP}{call.func._opname}::{call_site()}") if Spans.watched else nullcontext():
        return watched(call, run) if Warned.count and may_drift(call.func) else run()


def planned(call: BoundCall) -> object:
    """What a call gives, looked at whether or not one like it is known."""
    return _at_length(call, is_kept=False)


def _at_length(call: BoundCall, *, is_kept: bool) -> object:
    """A call that is looked at: one of a kind that is new, or whose tensors are special. `is_kept`: what repeats it is."""
    if call.func.namespace in OF_PROCESSES:
        raise refused_collective(call)
    left = None if _onlookers() else left_mode(call.tensors)
    if left is not None:
        with left:
            return _at_length(call, is_kept=False)
    base = _turned_or_shown(call)
    if base is not None and base.is_inference() is not torch.is_inference_mode_enabled():
        return _as_of(base, call)
    is_pure, forms = kind_of(call.func).is_pure, [x._form for x in call.tensors if isinstance(x, ShardedTensor)]
    is_special, is_open = any(form.is_special for form in forms), any(form.is_open for form in forms)
    is_pending = any(form.layout.pending for form in forms)
    if len(forms) < len(call.tensors):
        if any(x._is_zerotensor() for x in call.tensors):
            return _at_length(call.with_tensors([with_memory(x) for x in call.tensors]), is_kept=False)
        _keep_gradients_plain(call)
    _refuse_first(call, is_special=is_special, is_pending=is_pending)
    is_shared = not is_pure and shares_places(call)
    if is_special and not is_shared:
        result = _of_special(call)
        if result is not NotImplemented:
            return result
    shows = is_special and any(map(shows_another, call.tensors))
    if shows:
        refresh(call.tensors)
        tell_writes(written_tensors(call))
    result = _run(call, is_shared=is_shared)
    if call.func is _DETACH and is_open:
        result = _known_anew(as_sharded(result), forms[0])
    if not is_pure:
        _note_writes(call)
    if is_pending:
        note_computed(call, result)
    _note_views(call, result, is_special=is_special)
    if shows:
        keep_marks(call, result)
        with told_before():  # by `tell_writes`, also where a write to one of a list has changed another
            for x in () if call.is_written_back else written_tensors(call):
                write_through(x)
    elif is_kept and not is_shared and not is_open:
        _keep(call, result)
    if call.afterwards is not None:
        call.afterwards()
    return result


def _as_of(base: ShardedTensor, call: BoundCall) -> object:
    """What a call gives whose views, or what it turns, are inference tensors where their base is one, in inference mode or not."""
    if kind_of(call.func).composite and not _is_told_to_torch(call.func):
        if base.is_inference():
            return call.func.decompose(*call.args, **call.kwargs)
        with let_in(torch._C.DispatchKey.ADInplaceOrView):  # so that torch knows what its parts give as views
            return call.func.decompose(*call.args, **call.kwargs)
    with torch.inference_mode(base.is_inference()), torch.no_grad():
        return torch_dispatch(ShardedTensor.final, call.func, (), call.args, call.kwargs)


def _keep_gradients_plain(call: BoundCall) -> None:
    """Has the plain tensors of a call, where they are differentiated, take plain gradients."""
    if torch.is_grad_enabled():
        for x in call.tensors:
            if x.requires_grad and not isinstance(x, ShardedTensor):
                keep_gradient_plain(x)


def _refuse_first(call: BoundCall, *, is_special: bool, is_pending: bool) -> None:
    """Refuses what torch refuses of a call of which something may move before its layouts are known, or is not seen by all."""
    if is_special and call.func is not _DETACH:
        refuse_stale(call.tensors, str(call.func))
    if is_special or is_pending or call.func in handlers or kind_of(call.func).outs or call.func in LENIENT:
        refuse_wrong(call)


def _known_anew(result: ShardedTensor, form: Form) -> ShardedTensor:
    """What is detached, by the sizes of what it was: a compiler has names of its own for them, and takes others for another tensor."""
    return made(form, result._value, int(result.storage_offset()), result.__dict__.get("_asked"))


def _note_writes(call: BoundCall) -> None:
    """Has what is known of the tensors that a call wrote to follow."""
    forget_written(written_tensors(call))  # an op may have brought for itself what it then wrote to
    for x in written_tensors(call):
        if x._value.fold is not None:
            x._value.fold.forget()  # in one memory too, where what it is folded from shows the write
    if kind_of(call.func).composite and torch.is_inference_mode_enabled():
        count_writes(written_tensors(call))  # which torch does in the ops that it takes such calls apart into
    if is_traced():
        settle_totals(written_tensors(call))


def _note_views(call: BoundCall, result: object, *, is_special: bool) -> None:
    """Tells a tensor of the views that a call gives of it."""
    base = _shown_by(call)
    if base is not None:
        base._value.note_views(result)
        if not _is_taken_apart(call.func):  # its parts have, those that are views: `to` may give a copy
            share_nothing(base, result)
        if is_special:
            note_views_of_turned(base, result)


def _keep(call: BoundCall, result: object) -> None:
    """Keeps what repeats a call, where something does."""
    repeat = call.repeat or repeat_of(call, result)
    if repeat is not None:
        plans.keep(call.func)
        assert call.key is not None
        _repeats[call.key] = repeat


def _of_special(call: BoundCall) -> object:
    """What an op gives of tensors whose elements lie elsewhere than their layouts say, where it can run there."""
    result = _of_folded(call)
    if result is NotImplemented:
        result = of_alone(call)
    return of_rows(call) if result is NotImplemented else result


def _of_folded(call: BoundCall) -> object:
    """What an op gives of tensors whose dims are merged, where it can use them as they were before."""
    op = folded_ops.get(call.func)
    if op is None or torch.is_inference_mode_enabled():
        return NotImplemented
    given = [x for x in call.args if isinstance(x, ShardedTensor)]
    folds = [x._value.fold for x in given if x._value.fold is not None]
    if not folds:
        return NotImplemented
    refresh(given)
    refresh(fold.of for fold in folds)
    return op(call)


def _turned_or_shown(call: BoundCall) -> ShardedTensor | None:
    """The tensor that a call turns in place, or of which it gives views: both are what it is."""
    base = call.args[0] if _turns(call.func) else _shown_by(call)
    if not isinstance(base, ShardedTensor) or call.func is _OF_OTHER_DTYPE:
        return None
    if call.func is _DETACH and base.is_inference():
        return None  # torch lets what is detached of it be written to outside of inference mode
    return base


@cached(1024)
def _turns(func: Op) -> bool:
    """Whether an op gives a tensor another shape where it lies."""
    return torch.Tag.inplace_view in func.tags and func._opname != "set_"


@cached(1024)
def _is_told_to_torch(func: Op) -> bool:
    """Whether torch makes views of what an op gives, whole as it is."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "ADInplaceOrView")


def _shown_by(call: BoundCall) -> ShardedTensor | None:
    """The tensor of which a call gives views, if it gives any."""
    viewed = kind_of(call.func).viewed
    base = None if viewed is None or viewed >= len(call.args) else call.args[viewed]
    return base if isinstance(base, ShardedTensor) else None


def _run(call: BoundCall, *, is_shared: bool) -> object:
    kind = kind_of(call.func)
    if kind.written or kind.outs:
        refuse_turned(written_tensors(call), str(call.func))
        note_write(written_tensors(call))
    lists = _written_lists(call)
    if is_shared and all(len(each) <= 1 for each in lists):
        refuse_wrong(call)
        if lists:
            # Torch leaves it to kernels to count writes to lists.
            call.afterwards = partial(count_writes, tuple(written_tensors(call)))
        return write_whole(call)
    positions = _resolved_first(call) if kind.is_pure else ()
    if positions:
        for at in gathered(call.tensors, call.plan) if isinstance(call.plan, OpPlan) else ():
            bring_gradient_home(call.tensors[at])  # as what repeats it does
        here = [resolved_for(call.func, as_sharded(x)) if at in positions else x for at, x in enumerate(call.args)]
        return call.func(*here, **call.kwargs)
    x = call.args[0] if call.args else None
    if kind.written == (0,) and _is_pending(x) and scales_beyond(call.func, call.args, call.kwargs):
        return _scaled_resolved(call, as_sharded(x))
    return _by_handler_or_rule(call)


def _is_pending(x: object) -> bool:
    return isinstance(x, ShardedTensor) and bool(x._layout.pending)


def _scaled_resolved(call: BoundCall, x: ShardedTensor) -> ShardedTensor:
    """What is pending, written to by an op that may go beyond all numbers in a part of a sum that does not."""
    op = str(call.func)
    store(x, as_sharded(call.func(resolve(x, op).clone(), *call.args[1:], **call.kwargs)), op)
    return x


def _by_handler_or_rule(call: BoundCall) -> object:
    """What the op gives by its handler, without `out=`, as the ops that it is made of, or by its rule."""
    func, kind = call.func, kind_of(call.func)
    special = handlers.get(func)
    if special is None and kind.outs:
        return write_out(call)
    if _is_taken_apart(func):
        return func.decompose(*call.args, **call.kwargs)
    try:
        result = run_by_rule(call) if special is None else special(call)
    except WeftError:
        raise
    except STUMBLES as error:
        raise let_torch_say(call) or error from None
    if special is None or not kind.is_pure:
        return result
    given = as_op_gives(call, result)
    if call.repeat is not None and not _is_same(given, result):
        call.repeat = None  # what repeats it gives it otherwise
    return given


def _is_taken_apart(func: Op) -> bool:
    """Whether calls of an op are run as the ops that torch says it by."""
    return kind_of(func).composite and func not in handlers and rule_for(func) is None


def _written_lists(call: BoundCall) -> list[list[object]]:
    """The lists that a call writes to: to several tensors of one it is to do so one after the other."""
    written = [call.args[at] for at in kind_of(call.func).written if at < len(call.args)]
    return [value for value in written if isinstance(value, list)]


def _is_same(one: object, other: object) -> bool:
    """Whether two results are the same tensors."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(map(is_, one, other))
    return one is other


def _resolved_first(call: BoundCall) -> tuple[int, ...]:
    """The pending arguments, by position, of a call that resolves them and nothing else of them."""
    waiting = tuple(at for at, x in enumerate(call.args) if _is_pending(x))
    if not waiting or rule_for(call.func) is None:
        return ()
    if scales_beyond(call.func, call.args, call.kwargs):
        return waiting
    given = sum(isinstance(x, torch.Tensor) for x in call.args)
    if given < len(call.tensors) or not may_run_by_rule(call.func):
        return ()
    if call.func in handlers and any(x.is_conj() for x in call.tensors):
        return ()  # what is resolved bears no marks, which the handler asks for
    plan = decided(call)
    positions = resolved_first(call, plan)
    if positions:
        call.plan = plan
    return positions
