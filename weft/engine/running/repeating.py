"""Repeated calls: what a call gives whose arguments lie as those of one that was planned, with nothing worked out again.

Here it is found out which kind of call it is; what repeats each kind is in the modules that are called `repeating_...`. Where
arguments turn out to be special after all, that gives `NOT_REPEATED`, and the call is looked at.
"""

from __future__ import annotations

import torch

from ...rules.call import BoundCall, Known, Kwargs
from ...rules.registry import bounds_of
from ...runtime.memory.memory_limit import memory_limit
from ...runtime.processes.mesh_processes import spans
from ...watch.notes import is_watched
from ..execute import brought, gathered
from ..handlers import may_run_by_rule
from ..index_bounds import check_bounds, is_known_whole, refuse_whole_indices
from ..moves.gradient_home import bring_gradient_home
from ..moves.resolving import resolved_for
from ..op_kind import OpKind, kind_of
from ..op_plan import NOT_REPEATED, OpPlan, Repeat, key_of, plans
from ..scaling import scales_beyond
from ..sharded import ShardedTensor, all_sharded, as_sharded
from ..views.copy_views import is_observed
from .repeating_beside_plain import beside_plain
from .repeating_joins import is_list_of, repeat_list
from .repeating_pieces import repeat_on_pieces, repeat_views, repeat_writes
from .repeating_resolved import on_known_totals
from .repeating_totals import by_totals, pending_view
from .repeating_whole import repeat_on_whole

__all__ = ["repeat_by_rule", "repeat_of", "resolved_first"]


def repeat_of(call: BoundCall, result: object) -> Repeat | None:
    """What repeats a call that gave this result; None where such calls have to be looked at."""
    return repeat_by_rule(call, result) if may_run_by_rule(call.func) else None


def repeat_by_rule(call: BoundCall, result: object) -> Repeat | None:
    """The same for a call that was run by its rule, whether or not all calls of its op are."""
    plan, kind = call.plan, kind_of(call.func)
    if not isinstance(plan, OpPlan):
        return None
    if any(type(x) is not ShardedTensor.final for x in call.tensors):
        return beside_plain(call, plan, kind, result)
    tensors = all_sharded(call.tensors)
    if any(x._layout.pending for x in tensors) and scales_beyond(call.func, call.args, call.kwargs):
        return None
    if call.args and is_list_of(call.args[0], tensors):
        return repeat_list(call, plan, result)
    if plan.once or plan.outputs is None or any(x._form.is_special for x in tensors):
        return None
    if len(_positions(call)) != len(tensors) or not _writes_nothing_else(call, kind, result):
        return None
    if any(x._layout is not need for x, need in zip(tensors, plan.inputs, strict=True)):
        return _elsewhere(call, plan, kind, result)
    if plan.whole:
        return repeat_on_whole(call, kind, result)
    if plan.schedule is None or plan.rule is None:
        return None
    if any(x._layout.pending or x._value.resolved is not None for x in tensors) or plan.total is not None:
        return _with_pending(call, plan, kind, result)
    if kind.written:
        return repeat_writes(call, plan)
    return repeat_views(call, plan, result) if kind.viewed is not None else repeat_on_pieces(call, plan, result)


def _writes_nothing_else(call: BoundCall, kind: OpKind, result: object) -> bool:
    """Whether a call writes to nothing, or to its first argument, which it gives."""
    return not kind.outs and (not kind.written or (kind.written == (0,) and result is call.args[0]))


def _positions(call: BoundCall) -> list[int]:
    """Where the sharded tensors stand among the arguments."""
    return [at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor)]


def resolved_first(call: BoundCall, plan: OpPlan) -> tuple[int, ...]:
    """The pending arguments, by position, of a call that resolves them and nothing else of them."""
    needs = dict(zip((at for at, x in enumerate(call.args) if isinstance(x, torch.Tensor)), plan.inputs, strict=True))
    return tuple(at for at in _waiting(call) if needs[at] is as_sharded(call.args[at])._layout.resolved)


def _waiting(call: BoundCall) -> tuple[int, ...]:
    return tuple(at for at, x in enumerate(call.args) if isinstance(x, ShardedTensor) and x._layout.pending)


def _with_pending(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call on tensors as they lie, where something is pending, before or after it."""
    total, waiting = plan.total, _waiting(call)
    if total is None and kind.viewed == 0:
        return pending_view(call, repeat_views(call, plan, result))
    # What is not pending is known whole, so the op always runs on wholes where all of it is.
    by_pieces = kind.is_pure and (total is None or bool(waiting))
    recipe = repeat_on_pieces(call, plan, result) if by_pieces else None
    return None if total is None and recipe is None else by_totals(call, total, waiting, recipe)


def _elsewhere(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call of whose tensors some lie elsewhere than it needs them."""
    if not kind.is_pure:
        return None
    if plan.total is not None and plan.total.takes(all_sharded(call.tensors)):
        repeat: Repeat | None = by_totals(call, plan.total, _waiting(call), None)
    else:
        repeat = _resolving(call, plan, kind, result) or _bringing(call, plan, kind, result)
    return None if repeat is None else _refusing_first(call, plan, _with_gradients_home(call, plan, repeat))


def _resolving(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call that resolves some pending arguments, and then is as one with such arguments."""
    if plan.rule is None:
        return None
    func, positions = call.func, resolved_first(call, plan)
    lying = zip(all_sharded(call.tensors), plan.inputs, strict=True)
    brings = sum(x._layout is not need for x, need in lying) > len(positions)
    at_once = on_known_totals(call, kind, positions, result, brings) if positions == _waiting(call) else None

    def repeat(args: Known, kwargs: Kwargs) -> object:
        result = NOT_REPEATED if at_once is None else at_once(args, kwargs)
        if result is not NOT_REPEATED:
            return result
        here = list(args)
        for at in positions:
            here[at] = resolved_for(func, here[at])
        again = plans.repeats.get(key_of(func, tuple(here), kwargs))
        result = NOT_REPEATED if again is None else again(tuple(here), kwargs)
        return func(*here, **kwargs) if result is NOT_REPEATED else result

    return repeat if positions else None


def _bringing(call: BoundCall, plan: OpPlan, kind: OpKind, result: object) -> Repeat | None:
    """A call that brings some of its tensors, none of which is pending, to other layouts first."""
    lying = zip(_positions(call), all_sharded(call.tensors), plan.inputs, strict=True)
    elsewhere = [(at, x._layout, need) for at, x, need in lying if x._layout is not need]
    if any(layout.pending for _, layout, _ in elsewhere):
        return None
    if plan.whole:
        run = repeat_on_whole(call, kind, result)
        if run is None:
            return None
        # They need only be said to lie elsewhere, to whoever looks on, and to fit where they would be brought.
        return lambda args, kwargs: NOT_REPEATED if is_observed() or memory_limit() is not None else run(args, kwargs)
    if plan.schedule is None or plan.rule is None or plan.rule.local_args is not None or plan.total is not None:
        return None
    recipe, name, bounds, positions = repeat_on_pieces(call, plan, result), str(call), plan.bounds, _positions(call)
    if recipe is None:
        return None

    def repeat(args: Known, kwargs: Kwargs) -> object:
        here = list(args)
        for at, _, need in elsewhere:
            here[at] = brought(here[at], need, name, whole=False, is_read=True)
        if bounds:  # an index that every process had whole may be cut by now
            check_bounds(bounds, [args[at] for at in positions], [here[at] for at in positions])
        return recipe(tuple(here), kwargs)

    waiting = _waiting(call)
    return by_totals(call, None, waiting, repeat) if waiting else repeat


def _refusing_first(call: BoundCall, plan: OpPlan, repeat: Repeat) -> Repeat:
    """The same, for a call whose indices all processes have whole: looked at before anything is sent, or logged."""
    if plan.whole and not _waiting(call):  # which is looked at again where anybody looks on
        return repeat
    given, positions, is_sent = call.tensors, _positions(call), spans(plan.mesh)
    bounds = tuple(each for each in bounds_of(call) if is_known_whole(given[each.at]))

    def refusing(args: Known, kwargs: Kwargs) -> object:
        if is_sent or is_watched():
            refuse_whole_indices(bounds, [args[at] for at in positions])
        return repeat(args, kwargs)

    return refusing if bounds else repeat


def _with_gradients_home(call: BoundCall, plan: OpPlan, repeat: Repeat) -> Repeat:
    """The same, for a call that gathers some of its tensors, which have their gradients brought back."""
    positions = _positions(call)
    places = [positions[at] for at in gathered(call.tensors, plan)]

    def with_gradients(args: Known, kwargs: Kwargs) -> object:
        for at in places:
            bring_gradient_home(args[at])
        return repeat(args, kwargs)

    return with_gradients if places else repeat
