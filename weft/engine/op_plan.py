"""Preparing: the layouts in which an op takes its tensors and gives its results, decided once for all such calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from ..rules.bounds import Bound
from ..rules.factors import Factors
from ..rules.registry import Call, Rule, Spec, rule_for
from ..runtime.holding import holding
from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .choose import Choice, Input, choose
from .local_run import swapped
from .schedule import Schedule
from .sharded import ShardedTensor
from .single_run import needs_single_run, writes_beside
from .total_run import TotalCall
from .wrong_calls import STUMBLES, let_torch_say

__all__ = ["Prepared", "known", "layouts_for", "prepare", "prepared_for", "prepared_in", "tensors_in"]

Args = tuple[object, ...]
Kwargs = dict[str, object]


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
    bounds: tuple[Bound, ...] = ()
    """What its indices may be."""
    once: bool = False
    """Whether every process runs the op on whole values."""
    schedule: Schedule | None = None
    """Where it runs when it does not run whole; worked out at the first call."""
    total: TotalCall | None = None
    """How it runs once on whole values all the same, and leaves a reduction pending; worked out with `schedule`."""


_prepared: dict[tuple[object, ...], Prepared] = {}
_MOST_PREPARED = 1 << 16
forget_with_residences(_prepared.clear)


def prepared_for(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> Prepared:
    """What is decided for a call, now or before."""
    key = _key(func, args, kwargs, tensors)
    prepared = _prepared.get(key)
    if prepared is None:
        if len(_prepared) >= _MOST_PREPARED:
            _prepared.clear()
        prepared = _prepared[key] = prepare(func, args, kwargs, tensors)
    return prepared


def known(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> Prepared | None:
    """What was decided for such a call before, if there was one."""
    return _prepared.get(_key(func, args, kwargs, tensors))


def prepared_in(
    func: torch._ops.OpOverload,
    args: Args,
    kwargs: Kwargs,
    tensors: Sequence[torch.Tensor],
    inputs: tuple[Layout, ...],
    outputs: tuple[Layout, ...],
    rule: Rule,
) -> Prepared:
    """The same for a call that only reads, in layouts that a handler has chosen."""
    key = (*_key(func, args, kwargs, tensors), inputs, outputs)
    prepared = _prepared.get(key)
    if prepared is None:
        whole = holding(outputs[0]).unified and not any(layout.pending for layout in (*inputs, *outputs))
        prepared = _prepared[key] = Prepared(inputs, outputs, outputs[0].mesh, whole, rule, None)
    return prepared


def _key(
    func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]
) -> tuple[object, ...]:
    return (func, tuple(map(_signature, tensors)), _static(args), _static(kwargs) if kwargs else None)


def layouts_for(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> tuple[Layout, ...]:
    """The layouts in which an op would take its tensors."""
    return prepare(func, args, kwargs, tensors_in(args, kwargs)).inputs


def prepare(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> Prepared:
    """Chooses the layouts of a call."""
    mesh = _common_mesh(tensors)
    written = _written(func, args, kwargs, tensors)
    rule = rule_for(func)
    call = _call(func, args, kwargs, tensors)
    factors = None if rule is None else _factors(rule, call, args, kwargs, tensors)
    if factors is None:
        replicated = tuple(Layout.replicated(mesh, x.dim()) for x in tensors)
        outputs: tuple[Layout, ...] | None = None
        if written is not None and isinstance(tensors[written], ShardedTensor) and not writes_beside(func):
            outputs = (replicated[written],)
        choice: Choice | None = None
    else:
        given = [
            Input(x._layout if isinstance(x, ShardedTensor) else None, tuple(x.shape), x.dtype.itemsize)
            for x in tensors
        ]
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
    if rule is None or factors is None:
        return Prepared(replicated, outputs, mesh, whole, None, written, once=once)
    bounds = () if rule.bounds is None or whole else rule.bounds(call)
    return Prepared(replicated, outputs, mesh, whole, rule, written, bounds)


def _call(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> Call:
    """A call as rules see it."""
    specs = tuple(Spec(tuple(x.shape), x.dtype) for x in tensors)
    placed = iter(specs)
    return Call(func, cast(Args, swapped(args, placed)), cast(Kwargs, swapped(kwargs, placed)), specs)


def _factors(rule: Rule, call: Call, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> Factors | None:
    """The factors of a call. Rules take calls that are right: what is wrong with others, torch says."""
    if rule.of_nothing is not None and any(0 in spec.shape for spec in call.tensors):
        return None
    try:
        factors = rule.factors(call)
    except STUMBLES as error:
        raise let_torch_say(call.func, args, kwargs, tensors) or error from None
    if factors is not None and [len(dims) for dims in factors.inputs] != [spec.ndim for spec in call.tensors]:
        shapes = ", ".join(str(spec.shape) for spec in call.tensors)
        fault = RuntimeError(f"the rule of {call.func} is not made for tensors of the shapes {shapes}")
        raise let_torch_say(call.func, args, kwargs, tensors) or fault
    return factors


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


def _signature(x: torch.Tensor) -> tuple[object, ...]:
    return (x._layout if isinstance(x, ShardedTensor) else None, x.shape, x.dtype)


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
    meshes = [x._layout.mesh for x in tensors if isinstance(x, ShardedTensor)]
    return max(meshes, key=lambda mesh: mesh.num_devices)


def _written(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> int | None:
    """Which of the tensors the op writes to, if any."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                return next(k for k, x in enumerate(tensors) if x is value)
    return None
