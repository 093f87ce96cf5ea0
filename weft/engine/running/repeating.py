"""Repeated calls: what a call gives whose arguments lie as those of one that was planned, with nothing worked out again.

Each function here makes what repeats one kind of call. Where arguments turn out to be special after all, it gives
`NOT_REPEATED`, and the call is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import is_
from typing import Any, cast

import torch

from ...rules.call import Args, BoundCall, Kwargs, Op
from ...runtime.holding import Pieces, holding
from ...runtime.memory_limit import memory_limit
from ..execute import brought, gathered
from ..form import Form
from ..handlers import may_run_by_rule
from ..index_bounds import check_bounds
from ..moves.gradient_home import bring_gradient_home
from ..moves.resolving import resolve
from ..op_kind import OpKind, kind_of
from ..op_plan import NOT_REPEATED, OpPlan, Repeat, key_of, plans
from ..scaling import scales_beyond
from ..sharded import ShardedTensor
from ..strides.result_strides import Strided
from ..total import note_write
from ..value import Value
from ..views.copy_views import is_observed
from ..writes.overlapping import refuse_overlaps
from .on_pieces import expects_contiguous, run_everywhere
from .once import is_foreseen
from .quick import quick
from .repeating_totals import by_totals, pending_view
from .schedule import Place, Read, Schedule

__all__ = ["repeat_by_rule", "repeat_of", "resolved_first", "tensor_of"]

Reader = Callable[[Pieces], Sequence[torch.Tensor]]
"""Gives what each run reads of one argument."""
_make: Any = torch.Tensor._make_wrapper_subclass
_strided = torch.strided
_new = object.__new__


def repeat_of(call: BoundCall, result: object) -> Repeat | None:
    """What repeats a call that gave this result; None where such calls have to be looked at."""
    return repeat_by_rule(call, result) if may_run_by_rule(call.func) else None


def repeat_by_rule(call: BoundCall, result: object) -> Repeat | None:
    """The same for a call that was run by its rule, whether or not all calls of its op are."""
    if any(type(x) is not ShardedTensor.final for x in call.tensors):
        return None
    tensors = cast("list[ShardedTensor]", call.tensors)
    if any(x._layout.pending for x in tensors) and scales_beyond(call.func, call.args, call.kwargs):
        return None
    positions = [at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)]
    plan = call.plan
    if isinstance(plan, OpPlan) and call.args and _is_list_of(call.args[0], tensors):
        return _of_list(call, plan, result)
    if not isinstance(plan, OpPlan) or len(positions) != len(tensors):
        return None
    if plan.once or plan.outputs is None or any(x._form.is_special for x in tensors):
        return None
    kind = kind_of(call.func)
    if kind.outs or (kind.written and not (kind.written == (0,) and result is call.args[0])):
        return None
    if any(x._layout is not need for x, need in zip(tensors, plan.inputs, strict=True)):
        if plan.total is not None and kind.is_pure and plan.total.takes(tensors):
            repeat: Repeat | None = by_totals(call, plan.total, _waiting(call), None)
        else:
            repeat = _resolving(call, plan) or _bringing(call, plan, kind, result)
        return repeat if repeat is None or not kind.is_pure else _with_gradients_home(call, plan, repeat)
    if plan.whole:
        return _on_whole(call, kind, result)
    if plan.schedule is None or plan.rule is None:
        return None
    if any(x._layout.pending or x._value.resolved is not None for x in tensors) or plan.total is not None:
        if plan.total is None and kind.viewed == 0:
            return pending_view(call, _views_of_pieces(call, plan, result))
        recipe = _on_pieces(call, plan, result) if kind.is_pure else None
        return None if plan.total is None and recipe is None else by_totals(call, plan.total, _waiting(call), recipe)
    if kind.written:
        return _writing_pieces(call, plan)
    return _views_of_pieces(call, plan, result) if kind.viewed is not None else _on_pieces(call, plan, result)


def resolved_first(call: BoundCall, plan: OpPlan) -> tuple[int, ...]:
    """The pending arguments, by position, of a call that resolves them and nothing else of them."""
    needs = dict(zip((at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)), plan.inputs, strict=True))
    return tuple(at for at in _waiting(call) if needs[at] is cast(ShardedTensor, call.args[at])._layout.resolved)


def _waiting(call: BoundCall) -> tuple[int, ...]:
    return tuple(at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor) and x._layout.pending)


def _resolving(call: BoundCall, plan: OpPlan) -> Repeat | None:
    """A call that resolves some pending arguments, and then is as one with such arguments."""
    if not kind_of(call.func).is_pure or plan.rule is None:
        return None
    func, positions, name = call.func, resolved_first(call, plan), str(call.func)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        here = list(args)
        for at in positions:
            here[at] = resolve(cast(ShardedTensor, here[at]), name)
        again = plans.repeats.get(key_of(func, tuple(here), kwargs))
        result = NOT_REPEATED if again is None else again(tuple(here), kwargs)
        return func(*here, **kwargs) if result is NOT_REPEATED else result

    return repeat if positions else None


def _bringing(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call that brings some of its tensors, none of which is pending, to other layouts first."""
    positions = [at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)]
    tensors = cast("list[ShardedTensor]", call.tensors)
    needs = [(at, need) for at, x, need in zip(positions, tensors, plan.inputs, strict=True) if x._layout is not need]
    if not kind.is_pure or any(cast(ShardedTensor, call.args[at])._layout.pending for at, _ in needs):
        return None
    if plan.whole:
        run = _on_whole(call, kind, result)
        if run is None:
            return None
        # They need only be said to lie elsewhere, to whoever looks on, and to fit where they would be brought.
        return lambda args, kwargs: NOT_REPEATED if is_observed() or memory_limit() is not None else run(args, kwargs)
    if plan.schedule is None or plan.rule is None or plan.rule.local_args is not None or plan.total is not None:
        return None
    recipe = _on_pieces(call, plan, result)
    name = str(call)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        here = list(args)
        for at, need in needs:
            here[at] = brought(cast(ShardedTensor, here[at]), need, name, whole=False, is_read=True)
        return cast(Repeat, recipe)(tuple(here), kwargs)

    waiting = _waiting(call)
    if recipe is None:
        return None
    return by_totals(call, None, waiting, repeat) if waiting else repeat


def _with_gradients_home(call: BoundCall, plan: OpPlan, repeat: Repeat) -> Repeat:
    """The same, for a call that gathers some of its tensors, which have their gradients brought back."""
    positions = [at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)]
    places = [positions[at] for at in gathered(call.tensors, plan)]

    def with_gradients(args: Args, kwargs: Kwargs) -> object:
        for at in places:
            bring_gradient_home(args[at])  # type: ignore[arg-type]
        return repeat(args, kwargs)

    return with_gradients if places else repeat


def _is_list_of(value: object, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an argument is a list of just these tensors."""
    return isinstance(value, list) and len(value) == len(tensors) and all(map(is_, value, tensors))


def _of_list(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A call that only reads a list of tensors, as they lie, and makes one of them: they are joined."""
    tensors = cast("list[ShardedTensor]", call.tensors)
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
            (op([x._value.pieces[0] for x in args[0]], *args[1:], **kwargs),),  # type: ignore[attr-defined, arg-type]
        )
    schedule, rule = plan.schedule, plan.rule
    if schedule is None or rule is None or rule.local is not None or rule.local_args is not None or plan.bounds:
        return None
    (strided,), places = schedule.strides.of(call), schedule.places
    if strided is None or any(place.parts != (None,) for place in places) or not places:
        return None
    readers = [_reader([place.reads[k] for place in places]) for k in range(len(tensors))]
    made, ordered = _made_by(0, schedule), strided.ordered

    def repeat(args: Args, kwargs: Kwargs) -> object:
        given = cast("Sequence[ShardedTensor]", args[0])
        columns = [read(x._value.pieces) for read, x in zip(readers, given, strict=True)]
        results = [op([column[k] for column in columns], *args[1:], **kwargs) for k in range(len(places))]
        return tensor_of(form, ordered(tuple([cast(torch.Tensor, results[run]) for run in made])))

    return repeat


def _applied(call: BoundCall) -> Callable[[Any, Kwargs], Any]:
    """What runs an op on whole values, in one memory: the quickest way for the arguments it has."""
    op, final = quick(call.func), ShardedTensor.final
    is_tensor = [isinstance(x, ShardedTensor) for x in call.args]
    if call.kwargs or not is_tensor[0]:
        return lambda args, kwargs: op(*[x._value.pieces[0] if type(x) is final else x for x in args], **kwargs)
    if len(is_tensor) == 1:
        return lambda args, _: op(args[0]._value.pieces[0])
    if is_tensor == [True, True]:
        return lambda args, _: op(args[0]._value.pieces[0], args[1]._value.pieces[0])
    if not any(is_tensor[1:]):
        return lambda args, _: op(args[0]._value.pieces[0], *args[1:])
    return lambda args, _: op(*[x._value.pieces[0] if type(x) is final else x for x in args])


def _on_whole(call: BoundCall, kind: OpKind, result: object) -> Repeat | None:
    """In one memory, a call on whole values."""
    apply, final = _applied(call), ShardedTensor.final
    if kind.written:

        def write(args: Args, kwargs: Kwargs) -> object:
            note_write(args[:1])  # type: ignore[arg-type]
            apply(args, kwargs)
            return args[0]

        return write
    if not is_foreseen(call.func):
        return None
    if kind.viewed is not None:
        return _views_of_whole(apply, result)
    if isinstance(result, ShardedTensor):
        form = result._form
        shape, strides, dtype, device = form.shape, form.strides, form.dtype, form.device

        def repeat(args: Args, kwargs: Kwargs) -> object:
            value = _new(Value)
            value.pieces = (apply(args, kwargs),)
            tensor = _make(final, shape, strides, 0, None, dtype, _strided, device)
            tensor._form = form
            tensor._value = value
            return tensor

        return repeat
    if not isinstance(result, (list, tuple)):
        return None
    forms, several = [x._form if isinstance(x, ShardedTensor) else None for x in result], type(result)

    def repeat_all(args: Args, kwargs: Kwargs) -> object:
        made = zip(forms, apply(args, kwargs), strict=True)
        return several([whole if form is None else tensor_of(form, (whole,)) for form, whole in made])

    return repeat_all


def _views_of_whole(apply: Callable[[Args, Kwargs], Any], result: object) -> Repeat | None:
    several = isinstance(result, (list, tuple))
    values = cast("Sequence[ShardedTensor]", result if several else (result,))
    if not values or any(x._form.is_special for x in values):
        return None
    forms = [x._form for x in values]
    form, gather = forms[0], type(result)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        if torch.is_inference_mode_enabled() and not cast(ShardedTensor, args[0]).is_inference():
            return NOT_REPEATED
        whole = apply(args, kwargs)
        if several:
            return gather([tensor_of(f, (w,), w.storage_offset()) for f, w in zip(forms, whole, strict=True)])  # type: ignore[call-arg]
        return tensor_of(form, (whole,), whole.storage_offset())

    return repeat


def tensor_of(form: Form, pieces: Pieces, offset: int = 0) -> ShardedTensor:
    """The tensor of a form that these pieces make up."""
    value = _new(Value)
    value.pieces = pieces
    tensor = _make(ShardedTensor.final, form.shape, form.strides, offset, None, form.dtype, _strided, form.device)
    tensor._form = form
    tensor._value = value
    return tensor  # type: ignore[no-any-return]


def _on_pieces(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A call that only reads, and does the same at every place, with what is there of its arguments."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    several = isinstance(result, (list, tuple))
    values = result if isinstance(result, (list, tuple)) else (result,)
    if not all(isinstance(x, ShardedTensor) for x in values) or not is_foreseen(call.func):
        return None
    strided = schedule.strides.of(call)
    is_alike = schedule.places and rule.local is None and rule.of_nothing is None and not plan.bounds
    in_parts = any(part is not None for place in schedule.places for part in place.parts)
    runs = _runs(call, plan, schedule) if is_alike and not in_parts and None not in strided else None
    if runs is None:
        return _everywhere(call.func, schedule, plan)
    made = [_made_by(k, schedule) for k in range(len(schedule.outputs))]
    forms = [cast(ShardedTensor, x)._form for x in values]
    ordered = [cast(Strided, each).ordered for each in strided]
    gather = type(result)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        results = runs(args, kwargs)
        if not several:
            return tensor_of(forms[0], ordered[0](tuple([results[run] for run in made[0]])))
        columns = zip(forms, ordered, made, zip(*results, strict=True), strict=True)
        return gather(  # type: ignore[call-arg]
            [tensor_of(form, order(tuple([of[run] for run in by]))) for form, order, by, of in columns]
        )

    return repeat


def _everywhere(func: Op, schedule: Schedule, plan: OpPlan) -> Repeat:
    """The same for calls whose places differ in more than what they read."""

    def repeat(args: Args, kwargs: Kwargs) -> object:
        call = BoundCall(func, args, kwargs)
        laid = cast("list[ShardedTensor]", call.tensors)
        if plan.bounds:
            check_bounds(plan.bounds, laid, laid)
        return run_everywhere(call, laid, schedule, plan.rule)

    return repeat


def _runs(call: BoundCall, plan: OpPlan, schedule: Schedule) -> Callable[[Args, Kwargs], list[Any]] | None:
    """What runs at every place, given the arguments; None where a place has nothing to read."""
    rule, places = plan.rule, schedule.places
    assert rule is not None
    if any(0 in region.shape for place in places for region in (*place.inputs, *place.outputs)):
        return None
    positions = [at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)]
    readers = [_reader([place.reads[k] for place in places]) for k in range(len(positions))]
    if expects_contiguous(call.func):
        readers = [_contiguous(read) for read in readers]
    reading = list(zip(positions, readers, strict=True))
    op = quick(call.func) if rule.local_op is None else rule.local_op
    if kind_of(call.func).viewed is not None:
        op = quick(call.func)  # a copy is no view
    if rule.local_args is None:

        def run(args: Args, kwargs: Kwargs) -> list[Any]:
            here = list(args)
            columns = _columns(args, reading)
            results: list[Any] = []
            for k in range(len(places)):
                for at, column in columns:
                    here[at] = column[k]
                results.append(op(*here, **kwargs))
            return results

        return run
    templates = [_localized(call, rule.local_args, positions, readers, place, k) for k, place in enumerate(places)]

    def run_localized(args: Args, _: Kwargs) -> list[Any]:
        columns = _columns(args, reading)
        results: list[Any] = []
        for k, (template, kwargs) in enumerate(templates):
            here = list(template)
            for at, column in columns:
                here[at] = column[k]
            results.append(op(*here, **kwargs))
        return results

    # What a place is called with is worked out once, so it must not be of numbers that may differ.
    return None if any(isinstance(x, float) for x in (*call.args, *call.kwargs.values())) else run_localized


def _columns(args: Any, reading: Sequence[tuple[int, Reader]]) -> list[tuple[int, Sequence[torch.Tensor]]]:  # noqa: ANN401
    """For the arguments that are tensors, by position, what each run reads of them."""
    return [(at, read(args[at]._value.pieces)) for at, read in reading]


def _localized(
    call: BoundCall,
    local_args: Callable[..., BoundCall],
    positions: Sequence[int],
    readers: Sequence[Reader],
    place: Place,
    k: int,
) -> tuple[Args, Kwargs]:
    local = [
        read(cast(ShardedTensor, call.args[at])._value.pieces)[k] for at, read in zip(positions, readers, strict=True)
    ]
    here = local_args(call.with_tensors(local), place.out_shapes)
    return here.args, here.kwargs


def _made_by(k: int, schedule: Schedule) -> list[int]:
    """For each piece of a result, the run that makes it."""
    return [
        next(run for run, place in enumerate(schedule.places) if place.makes[k] == piece)
        for piece in range(holding(schedule.outputs[k]).count)
    ]


def _views_of_pieces(call: BoundCall, plan: OpPlan, result: object) -> Repeat | None:
    """A view whose pieces are views of the pieces of what it shows."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    several = isinstance(result, (list, tuple))
    values = cast("Sequence[ShardedTensor]", result if several else (result,))
    x = call.args[0]
    if rule.local is not None or any(y._form.is_special for y in values) or not isinstance(x, ShardedTensor):
        return None
    if not values:
        return None
    runs = _runs(call, plan, schedule)
    if runs is None or not schedule.places:
        return None
    made = [_made_by(k, schedule) for k in range(len(schedule.outputs))]
    start = int(x.storage_offset())
    forms = [(y._form, int(y.storage_offset()) - start) for y in values]
    gather = type(result)

    def repeat(args: Args, kwargs: Kwargs) -> object:
        base: Any = args[0]
        if base._value.resolved is not None or (torch.is_inference_mode_enabled() and not base.is_inference()):
            return NOT_REPEATED
        try:
            results = runs(args, kwargs)
        except RuntimeError:  # pieces that lie otherwise, of which there is no such view
            return NOT_REPEATED
        offset = base.storage_offset()
        if not several:
            form, ahead = forms[0]
            return tensor_of(form, tuple([results[run] for run in made[0]]), offset + ahead)
        columns = zip(forms, made, zip(*results, strict=True), strict=True)
        return gather(  # type: ignore[call-arg]
            [tensor_of(form, tuple([of[run] for run in by]), offset + ahead) for (form, ahead), by, of in columns]
        )

    return repeat


def _writing_pieces(call: BoundCall, plan: OpPlan) -> Repeat | None:
    """A call that writes to the pieces of its first argument."""
    schedule, rule = plan.schedule, plan.rule
    assert schedule is not None
    assert rule is not None
    if rule.local is not None or rule.of_nothing is not None or plan.bounds or not schedule.places:
        return None
    runs = _runs(call, plan, schedule)
    if runs is None:
        return None
    others = len(call.tensors) > 1

    def repeat(args: Args, kwargs: Kwargs) -> object:
        if others:
            refuse_overlaps(args[0], [x for x in args if isinstance(x, torch.Tensor)])  # type: ignore[arg-type]
        note_write(args[:1])  # type: ignore[arg-type]
        runs(args, kwargs)
        return args[0]

    return repeat


def _reader(reads: Sequence[Read]) -> Reader:
    pieces = tuple(piece for piece, _ in reads)
    if all(part is None for _, part in reads):
        if pieces == tuple(range(len(reads))):
            return lambda given: given
        return lambda given: [given[piece] for piece in pieces]
    cut = _cut(reads)
    if cut is None:
        return lambda given: [given[piece] if part is None else given[piece][part] for piece, part in reads]
    piece, dim, sizes = cut
    return lambda given: given[piece].split_with_sizes(sizes, dim)


def _cut(reads: Sequence[Read]) -> tuple[int, int, list[int]] | None:
    """The piece, the dim and the sizes, where the runs read one part of one piece after another along one dim."""
    parts = [part for _, part in reads if part is not None]
    if len(parts) != len(reads) or len({piece for piece, _ in reads}) != 1:
        return None
    varying = [dim for dim, each in enumerate(zip(*parts, strict=True)) if len({(s.start, s.stop) for s in each}) > 1]
    if len(varying) != 1 or any(part[dim].start for part in parts for dim in range(len(part)) if dim != varying[0]):
        return None
    (dim,) = varying
    along = [part[dim] for part in parts]
    if along[0].start or any(one.stop != other.start for one, other in pairwise(along)):
        return None
    return reads[0][0], dim, [each.stop - each.start for each in along]


def _contiguous(read: Reader) -> Reader:
    return lambda given: [x.contiguous() for x in read(given)]
