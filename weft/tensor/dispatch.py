"""Dispatch: every torch op on sharded tensors, by the layouts that its rule allows and the chooser prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from ..rules.registry import Call, Rule, Spec, rule_for
from ..runtime.holding import holding
from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .aliasing import (
    forget_resolved,
    have_copies,
    is_current,
    refresh,
    remember_resolved,
    write_through,
)
from .chooser import Choice, Input, choose, stop_over
from .direct import (
    NOT_REPEATED,
    is_known,
    remember_call,
    remember_other,
    remember_recipe,
    remember_resolving,
    remember_shard_call,
    repeated,
    run_resolved,
    signature_of,
)
from .local_run import expects_contiguous, run_everywhere, run_replicated, run_whole, schedule_for, swapped
from .movement import from_plain, moved, note_move, to_plain
from .op_kind import kind_of
from .plain_gradient import keep_gradient_plain
from .recipe import Recipe, recipe_for
from .resolving import is_expanded, resolve
from .schedule import Schedule
from .single_run import needs_single_run, run_once, writes_beside
from .tensor import Tensor
from .total import known_total, note_write, own_pieces, part_pieces
from .total_run import TotalCall, total_call
from .viewing import viewed
from .writing import store, write_out, written_tensors

__all__ = ["dispatch", "handler", "handlers"]

Handler = Callable[[torch._ops.OpOverload, tuple[object, ...], dict[str, object]], object]

handlers: dict[torch._ops.OpOverload, Handler] = {}
"""The ops that need more than a rule."""


_may_be_direct: set[torch._ops.OpOverload] = set()
"""The ops whose handler does nothing else where their rule moves nothing."""


def handler(*ops: torch._ops.OpOverload, may_be_direct: bool = False) -> Callable[[Handler], Handler]:
    """Registers a function as the handler of these ops; `may_be_direct` if it does no more than their rule at times."""

    def register(function: Handler) -> Handler:
        for op in ops:
            handlers[op] = function
            (_may_be_direct.add if may_be_direct else _may_be_direct.discard)(op)
        return function

    return register


@dataclass(slots=True)
class Prepared:
    """What is decided once for all calls of an op with such inputs."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...] | None
    """None: as many replicated outputs as there will be."""
    mesh: DeviceMesh
    whole: bool
    """Whether the op runs once, on whole values."""
    rule: Rule | None
    written: int | None
    """The position among the tensors of the one that is written to."""
    once: bool = False
    """Whether every process runs the op on whole values."""
    schedule: Schedule | None = None
    """Where it runs when it does not run whole; worked out at the first call."""
    total: TotalCall | None = None
    """How it runs once on whole values all the same, and leaves a reduction pending; worked out with `schedule`."""


_prepared: dict[tuple[object, ...], Prepared] = {}
_MOST_PREPARED = 1 << 16
forget_with_residences(_prepared.clear)


def dispatch(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Runs one torch op on sharded tensors."""
    if torch.is_inference_mode_enabled() and _gives_usual_view(func, args):
        with torch.inference_mode(False), torch.no_grad():
            return dispatch(func, args, kwargs)
    if have_copies():
        refresh(tensors_in(args, kwargs))
        result = _run(func, args, kwargs)
        for x in written_tensors(func, args, kwargs):
            write_through(x)
        return result
    signature = signature_of(func, args, kwargs)
    if signature is None:
        return _run(func, args, kwargs)
    result = repeated(func, args, kwargs, signature)
    if result is NOT_REPEATED:
        result = _run(func, args, kwargs)
        if is_known(signature):
            return result
        if _is_direct(func, args, kwargs, result):
            remember_call(signature, result, writes=bool(kind_of(func).written))
        elif _runs_on_one_shard(func, args, kwargs, result):
            remember_shard_call(signature, result, kind_of(func), args)
        elif (kept := _recipe(func, args, kwargs)) is not None:
            remember_recipe(signature, args, kind_of(func), *kept)
        elif (positions := _resolved_first(func, args, kwargs)) is not None:
            remember_resolving(signature, positions)
        elif not any(type(x) is Tensor and (x._shown is not None or x._resolved is not None) for x in args):
            remember_other(signature)
    return result


def _gives_usual_view(func: torch._ops.OpOverload, args: tuple[object, ...]) -> bool:
    """Whether a call gives views that are no inference tensors, also in inference mode: views are what their base is."""
    viewed = kind_of(func).viewed
    base = None if viewed is None or viewed >= len(args) else args[viewed]
    return isinstance(base, Tensor) and not base.is_inference()


def _is_direct(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], result: object
) -> bool:
    """Whether a call took its arguments as they lie, in one memory, and read them, viewed or wrote to the first."""
    kind = kind_of(func)
    if (func in handlers and func not in _may_be_direct) or kind.outs:
        return False
    if kind.written and not (kind.written == (0,) and result is args[0]):
        return False
    tensors = cast("list[Tensor]", tensors_in(args, kwargs))
    prepared = _prepared.get(_key(func, args, kwargs, tensors))
    if prepared is None or not prepared.whole or prepared.once or prepared.outputs is None:
        return False
    if any(type(x) is not Tensor or x._shown is not None for x in tensors):
        return False
    return all(x._layout is need for x, need in zip(tensors, prepared.inputs, strict=True))


def _runs_on_one_shard(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], result: object
) -> bool:
    """Whether a call took its arguments as they lie, and ran as it is on the one shard of each that is stored here."""
    kind = kind_of(func)
    if func in handlers or kind.outs or kind.viewed not in (None, 0):
        return False
    if kind.written and not (kind.written == (0,) and result is args[0]):
        return False
    tensors = cast("list[Tensor]", tensors_in(args, kwargs))
    prepared = _prepared.get(_key(func, args, kwargs, tensors))
    if prepared is None or prepared.whole or prepared.once or prepared.schedule is None:
        return False
    rule, places = prepared.rule, prepared.schedule.places
    if rule is None or any(each is not None for each in (rule.local, rule.local_args, rule.local_op, rule.of_nothing)):
        return False
    if any(type(x) is not Tensor or len(x._pieces) != 1 or x._shown is not None for x in tensors):
        return False
    if not kind.is_pure and (tensors[0]._layout.pending or tensors[0]._resolved is not None):
        return False
    once = len(places) == 1 and all(read == (0, None) for read in places[0].reads)
    return once and all(x._layout is need for x, need in zip(tensors, prepared.inputs, strict=True))


def _recipe(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[TotalCall | None, Recipe | None] | None:
    """How to repeat a call that took its arguments as they lie and did not write to them: on whole values, and anyway."""
    if func in handlers and func not in _may_be_direct:
        return None
    tensors = cast("list[Tensor]", tensors_in(args, kwargs))
    prepared = _prepared.get(_key(func, args, kwargs, tensors))
    if prepared is None or prepared.once or prepared.schedule is None or prepared.rule is None:
        return None
    if any(type(x) is not Tensor or x._shown is not None for x in tensors):
        return None
    total, recipe = prepared.total, None
    if any(x._layout is not need for x, need in zip(tensors, prepared.inputs, strict=True)):
        return None if total is None or not kind_of(func).is_pure or not total.takes(tensors) else (total, None)
    if kind_of(func).is_pure and prepared.rule.local is None and prepared.rule.local_args is None:
        recipe = recipe_for(prepared.rule.local_op or func, args, prepared.schedule, expects_contiguous(func))
    return None if total is None and recipe is None else (total, recipe)


def _resolved_first(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[int, ...] | None:
    """The pending arguments, by position, of a call that resolves them and nothing else of them."""
    waiting = [at for at, x in enumerate(args) if type(x) is Tensor and x._layout.pending]
    if not waiting or not kind_of(func).is_pure or rule_for(func) is None:
        return None
    given = [at for at, x in enumerate(args) if isinstance(x, torch.Tensor)]
    tensors = tensors_in(args, kwargs)
    if len(given) < len(tensors) or (func in handlers and func not in _may_be_direct):
        return None
    needs = dict(zip(given, _prepared_for(func, args, kwargs, tensors).inputs, strict=True))
    return tuple(at for at in waiting if needs[at] is cast(Tensor, args[at])._layout.resolved) or None


def _run(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    kind = kind_of(func)
    if kind.written or kind.outs:
        note_write()
    positions = _resolved_first(func, args, kwargs)
    if positions is not None:
        return run_resolved(positions, func, args, kwargs)
    special = handlers.get(func)
    if special is not None:
        return special(func, args, kwargs)
    if kind.outs:
        return write_out(func, args, kwargs)
    if kind.composite and rule_for(func) is None:
        return func.decompose(*args, **kwargs)
    return run_by_rule(func, args, kwargs)


def run_by_rule(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Runs an op in the layouts that its rule and the chooser say."""
    kind = kind_of(func)
    tensors = tensors_in(args, kwargs)
    if kind.is_pure:
        tensors = [_usable(x) for x in tensors]
    prepared = _prepared_for(func, args, kwargs, tensors)
    if prepared.written is not None and not isinstance(tensors[prepared.written], Tensor):
        return _run_plain(func, args, kwargs)
    if prepared.once:
        return run_once(func, args, kwargs, tensors, prepared.mesh)
    if kind.is_pure:
        laid = [brought(x, need, func, prepared.whole) for x, need in zip(tensors, prepared.inputs, strict=True)]
        return _run_prepared(func, args, kwargs, tensors, laid, prepared)
    shared = prepared.written if kind.viewed is None else 0
    laid = [
        brought(x, need, func, prepared.whole, in_place=i == shared)
        for i, (x, need) in enumerate(zip(tensors, prepared.inputs, strict=True))
    ]
    if kind.viewed is not None:
        if isinstance(laid[0], Tensor) and laid[0]._layout.pending and known_total(laid[0]) is None:
            part_pieces(laid[0])
        result = _run_prepared(func, args, kwargs, tensors, laid, prepared)
        return viewed(func, args, kwargs, result, is_alias=laid[0] is tensors[0])
    if prepared.written is None:
        return _run_prepared(func, args, kwargs, tensors, laid, prepared)
    x, changed = cast(Tensor, tensors[prepared.written]), cast(Tensor, laid[prepared.written])
    own_pieces(changed)
    result = _run_prepared(func, args, kwargs, tensors, laid, prepared)
    if changed is not x:
        store(x, changed, str(func))
    if x._layout.pending:
        forget_resolved()
        if changed._layout is x._layout.resolved:
            remember_resolved(x, changed)
    return result


def _prepared_for(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], tensors: Sequence[torch.Tensor]
) -> Prepared:
    key = _key(func, args, kwargs, tensors)
    prepared = _prepared.get(key)
    if prepared is None:
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        prepared = _prepared[key] = prepare(func, args, kwargs, tensors)
    return prepared


def run_in(
    func: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    inputs: tuple[Layout, ...],
    outputs: tuple[Layout, ...],
    rule: Rule,
) -> object:
    """Runs an op that only reads, in layouts that a handler has chosen."""
    tensors = [_usable(x) for x in tensors_in(args, kwargs)]
    key = (*_key(func, args, kwargs, tensors), inputs, outputs)
    prepared = _prepared.get(key)
    if prepared is None:
        whole = holding(outputs[0]).unified and not any(layout.pending for layout in (*inputs, *outputs))
        prepared = _prepared[key] = Prepared(inputs, outputs, outputs[0].mesh, whole, rule, None)
    laid = [brought(x, need, func, prepared.whole) for x, need in zip(tensors, inputs, strict=True)]
    return _run_prepared(func, args, kwargs, tensors, laid, prepared)


def _key(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], tensors: Sequence[torch.Tensor]
) -> tuple[object, ...]:
    return (func, tuple(map(_signature, tensors)), _static(args), _static(kwargs) if kwargs else None)


def layouts_for(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Layout, ...]:
    """The layouts in which an op would take its tensors."""
    return prepare(func, args, kwargs, tensors_in(args, kwargs)).inputs


def _run_prepared(
    func: torch._ops.OpOverload,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    tensors: Sequence[torch.Tensor],
    laid: Sequence[torch.Tensor],
    prepared: Prepared,
) -> object:
    if prepared.whole:
        return run_whole(func, args, kwargs, laid, prepared.outputs, prepared.mesh)
    if prepared.outputs is None and holding(Layout.replicated(prepared.mesh, 0)).count:
        return run_replicated(func, args, kwargs, cast("list[Tensor]", laid), prepared.mesh)
    if prepared.schedule is None:
        prepared.schedule = schedule_for(func, args, kwargs, tensors, prepared.inputs, prepared.outputs, prepared.mesh)
        prepared.total = total_call(func, tensors, prepared.inputs, prepared.schedule, prepared.rule)
    if prepared.total is not None:
        result = prepared.total(args, kwargs, cast("list[Tensor]", laid))
        if result is not None:
            return result
    return run_everywhere(func, args, kwargs, cast("list[Tensor]", laid), prepared.schedule, prepared.rule)


def prepare(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], tensors: Sequence[torch.Tensor]
) -> Prepared:
    """Chooses the layouts of a call."""
    mesh = _common_mesh(tensors)
    written = _written(func, args, kwargs, tensors)
    rule = rule_for(func)
    specs = tuple(Spec(tuple(x.shape), x.dtype) for x in tensors)
    factors = None
    if rule is not None:
        placed = iter(specs)
        call = Call(
            func,
            cast("tuple[object, ...]", swapped(args, placed)),
            cast("dict[str, object]", swapped(kwargs, placed)),
            specs,
        )
        factors = rule.factors(call)
    if factors is None:
        replicated = tuple(Layout.replicated(mesh, x.dim()) for x in tensors)
        outputs: tuple[Layout, ...] | None = None
        if written is not None and isinstance(tensors[written], Tensor) and not writes_beside(func):
            outputs = (replicated[written],)
        choice: Choice | None = None
    else:
        given = [Input(x._layout if isinstance(x, Tensor) else None, tuple(x.shape), x.dtype.itemsize) for x in tensors]
        itemsize = max((x.dtype.itemsize for x in tensors), default=4)
        choice = choose(factors, given, mesh, itemsize, written)
        if written is not None and choice.inputs[written] is not choice.outputs[0]:
            # What is written in place cannot become pending: everything is resolved first.
            choice = choose(replace(factors, linear="no", reduces=None), given, mesh, itemsize, written)
        replicated, outputs = choice.inputs, choice.outputs
    unified = holding(replicated[0]).unified if replicated else True
    pending = any(layout.pending for layout in (*replicated, *(outputs or ())))
    whole = unified and not pending
    once = factors is None and (needs_single_run(func, mesh) or writes_beside(func))
    return Prepared(replicated, outputs, mesh, whole, rule if factors is not None else None, written, once)


def tensors_in(args: object, kwargs: object) -> list[torch.Tensor]:
    """All tensors of a call, in order."""
    found: list[torch.Tensor] = []
    _collect(args, found)
    if kwargs:
        _collect(kwargs, found)
    return found


def _collect(value: object, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)


def _usable(x: torch.Tensor) -> torch.Tensor:
    """A tensor, or its resolved form where an earlier op has already paid for that."""
    if isinstance(x, Tensor) and x._resolved is not None and is_current(x):
        return x._resolved
    return x


def _signature(x: torch.Tensor) -> tuple[object, ...]:
    return (x._layout if isinstance(x, Tensor) else None, x.shape, x.dtype)


def _static(value: object) -> object:
    """What of the other arguments a decision may depend on: not the value of a float."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_static, value))
    if isinstance(value, dict):
        return tuple((name, _static(item)) for name, item in value.items())
    if isinstance(value, torch.Tensor):
        return torch.Tensor
    if isinstance(value, float):
        return float
    return (type(value), value) if isinstance(value, (int, bool)) else value


def _common_mesh(tensors: Sequence[torch.Tensor]) -> DeviceMesh:
    """The mesh an op computes on: the largest, the first of these."""
    meshes = [x._layout.mesh for x in tensors if isinstance(x, Tensor)]
    return max(meshes, key=lambda mesh: mesh.num_devices)


def _written(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], tensors: Sequence[torch.Tensor]
) -> int | None:
    """Which of the tensors the op writes to, if any."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                return next(k for k, x in enumerate(tensors) if x is value)
    return None


def brought(
    x: torch.Tensor, need: Layout, func: torch._ops.OpOverload, whole: bool, *, in_place: bool = False
) -> torch.Tensor:
    """A tensor in the layout an op needs it in; itself, where the op is to use its very memory and can.

    Plain tensors count as whole.
    """
    if not isinstance(x, Tensor):
        if x.requires_grad and torch.is_grad_enabled():
            keep_gradient_plain(x)
        if not whole:
            return from_plain(x, need)
        device = holding(need).residence.device
        return x if x.device == device or x.dim() == 0 or x.is_meta else x.to(device)
    if x._layout is need:
        return x
    if in_place and whole and not x._layout.pending and x._layout.mesh == need.mesh:
        note_move(x, need, str(func))
        return x
    if x._layout.pending and not in_place and not need.pending:
        if need is x._layout.resolved:
            return resolve(x, str(func))
        x = resolve(x, str(func)) if is_expanded(x) else x
    middle = stop_over(x._layout, need)
    return moved(x if middle is None else moved(x, middle, str(func), implicit=True), need, str(func), implicit=True)


def _run_plain(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """An op that writes to a plain tensor: everything it reads becomes plain, and comes to where that is."""
    tensors = tensors_in(args, kwargs)
    device = next(x.device for x in tensors if not isinstance(x, Tensor))
    plain = iter([to_plain(x).to(device) if isinstance(x, Tensor) else x for x in tensors])
    return func(*cast("tuple[object, ...]", swapped(args, plain)), **cast("dict[str, object]", swapped(kwargs, plain)))


Tensor._run = staticmethod(dispatch)
