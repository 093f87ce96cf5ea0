"""`OpPlan`: in which layouts an op takes its tensors and gives its results, and how it runs; decided once for all such calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..caches import BoundedCache
from ..rules.bounds import Bound
from ..rules.call import BoundCall, Known, Kwargs, Op
from ..rules.factors import Factors
from ..rules.registry import Rule, forget_with_rules, rule_for
from ..runtime.machine import forget_with_residences
from ..runtime.processes.mesh_processes import leaves_out
from ..runtime.traced import hinted
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .choose import Choice, Input, choose
from .memory import memory_of, memory_on
from .running.once import needs_single_run, writes_beside
from .scaling import has_odd_number
from .sharded import ShardedTensor
from .strategy import is_considered
from .strides.whole_results import whole_results
from .wrong_calls import STUMBLES, let_torch_say, refuse_nested

if TYPE_CHECKING:
    from .running.on_totals import TotalCall
    from .running.schedule import OpSchedule

__all__ = [
    "NOT_REPEATED",
    "OpPlan",
    "Repeat",
    "decided",
    "factors_of",
    "has_open_sizes",
    "inputs_of",
    "key_of",
    "layouts_for",
    "plan_in",
    "plans",
    "token",
]

Key = tuple[object, ...]
Repeat = Callable[[Known, Kwargs], object]
"""What gives the result of a call like the one that was planned; it may still give `NOT_REPEATED`."""

NOT_REPEATED = object()
"""What a call that has to be looked at gives, when it is repeated."""


@dataclass(slots=True)
class OpPlan:
    """What is decided once for all calls of an op with such arguments."""

    func: Op
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
    schedule: OpSchedule | None = None
    """Where it runs when it does not run whole; worked out at the first call."""
    total: TotalCall | None = None
    """How it runs once on whole values all the same, and leaves a reduction pending; worked out with `schedule`."""

    def __str__(self) -> str:
        outputs = "replicated" if self.outputs is None else ", ".join(map(str, self.outputs))
        return f"{self.func}: {', '.join(map(str, self.inputs))} -> {outputs} on {self.mesh}"


class _Plans:
    """The one cache of the engine: by what a call is made with, its plan, and how it is repeated."""

    def __init__(self) -> None:
        self.repeats = BoundedCache[Key, Repeat](1 << 16, cleared_by=forget_with_residences)
        self._decided = BoundedCache[Key, OpPlan](1 << 16, cleared_by=forget_with_residences)
        self._ops: dict[int, Op] = {}
        forget_with_rules(self.repeats.clear)
        forget_with_rules(self._decided.clear)

    def keep(self, func: Op) -> None:
        """Keeps an op alive whose calls are known by its number: as many as there are ops."""
        self._ops[id(func)] = func

    def plan(self, key: Key, make: Callable[[], OpPlan]) -> OpPlan:
        """The plan of a call, now or before."""
        try:
            plan = self._decided.get(key)
        except TypeError:  # sizes that a compiler has not settled have no hash
            return make()
        if plan is None:
            plan = self._decided[key] = make()
        return plan


plans = _Plans()
"""Bound: its own. Cleared: when devices change places, or an op is given a rule."""

_TO_COPY = torch.ops.aten._to_copy.default


TRUE, FALSE = object(), object()  # True is equal to 1


def key_of(func: Op, args: Known, kwargs: Kwargs) -> Key:
    """All that a plan depends on: not the values of tensors, nor of floats that are usual numbers."""
    key: list[object] = [id(func)]  # torch takes its time to say the hash of an op
    final = ShardedTensor.final
    for x in args:
        kind = type(x)
        if kind is final:
            key.append(x._form)
        elif kind is int:
            key.append(x)
        elif kind is bool:
            key.append(TRUE if x else FALSE)
        elif kind is list and x and type(x[0]) is int and type(args[0]) is not list:
            key.append((int, *x))  # sizes and dims, as `token` has them
        else:
            key.append(_token_beside_list(x) if kind is list and type(args[0]) is list else token(x))
    if kwargs:
        key += kwargs.items() if func is _TO_COPY else [(name, token(x)) for name, x in kwargs.items()]
    return tuple(key)


def _token_beside_list(x: object) -> object:
    """Numbers beside a list of tensors are one for each of them, and others in every step of an optimizer."""
    if type(x) is not list or not x or isinstance(x[0], torch.Tensor):
        return token(x)
    kinds = tuple(map(type, x))  # 2 is equal to 2.0, but what is multiplied by it is of another type
    if torch.SymFloat in kinds:
        raise _open_number()
    return float if kinds.count(float) == len(kinds) else (kinds, *x)


def token(x: object) -> object:
    """What a plan depends on of one argument."""
    kind = type(x)
    if kind is ShardedTensor.final:
        return x._form  # type: ignore[attr-defined]
    if kind is int or x is None:
        return x
    if kind is bool or kind is complex:  # True is equal to 1, and so is 1 + 0j
        return (kind, x)
    if kind is float:
        # What is linear for other numbers may not be for 0, infinity or what is not a number.
        return float if x and x - x == 0 else str(x)  # type: ignore[operator]
    if kind is list or kind is tuple:
        return _list_token(x)  # type: ignore[arg-type]
    if kind is torch.SymFloat:
        raise _open_number()
    if isinstance(x, torch.Tensor):
        refuse_nested(x)
        strides = x.stride() if x.layout is torch.strided else x.layout
        return (x.shape, strides, x.dtype, x.device, x._is_zerotensor())
    return x


def _list_token(values: list[object] | tuple[object, ...]) -> object:
    kind = type(values[0]) if values else int
    if kind is int or kind is bool or kind is float:
        return (kind, *values)  # sizes may follow from them
    if kind is ShardedTensor.final:
        try:
            return tuple([x._form for x in values])  # type: ignore[attr-defined]
        except AttributeError:  # plain ones among them
            pass
    return tuple([token(x) for x in values])


def _open_number() -> TypeError:
    """As for sizes that a compiler leaves open: to hash such a number settles it, and it belongs to one program only."""
    return TypeError("unhashable type: a number that a compiler leaves open")


def has_open_sizes(call: BoundCall) -> bool:
    """Whether a call has a tensor whose sizes a compiler leaves open."""
    return any(isinstance(x, ShardedTensor) and x._form.is_open for x in call.tensors)


def _has_open_numbers(call: BoundCall) -> bool:
    """Whether a call has a number that a compiler leaves open."""
    given = (*call.args, *call.kwargs.values())
    return any(type(x) is torch.SymFloat or (type(x) is list and torch.SymFloat in map(type, x)) for x in given)


def decided(call: BoundCall) -> OpPlan:
    """The plan of a call."""
    if is_considered() or has_open_sizes(call) or _has_open_numbers(call):
        return _decide(call)
    plans.keep(call.func)
    return plans.plan(_key(call), lambda: _decide(call))


def _key(call: BoundCall) -> Key:
    """The key of a call, made once."""
    if call.key is None:
        call.key = key_of(call.func, call.args, call.kwargs)
    return call.key


def plan_in(call: BoundCall, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...], rule: Rule) -> OpPlan:
    """The plan of a call that only reads, in layouts that are given."""

    def make() -> OpPlan:
        whole = memory_of(outputs[0]).runs_whole((*inputs, *outputs))
        return OpPlan(call.func, inputs, outputs, outputs[0].mesh, whole, rule, None)

    if has_open_sizes(call) or _has_open_numbers(call):
        return make()
    plans.keep(call.func)
    return plans.plan((*_key(call), inputs, outputs), make)


def layouts_for(call: BoundCall) -> tuple[Layout, ...]:
    """The layouts in which an op would take its tensors."""
    return decided(call).inputs


def _decide(call: BoundCall) -> OpPlan:
    """Chooses the layouts of a call."""
    func, tensors = call.func, call.tensors
    mesh = _common_mesh(tensors)
    written = _written(call)
    rule = rule_for(func)
    factors = None if rule is None else factors_of(rule, call)
    if factors is None:
        inputs = tuple(Layout.replicated(mesh, x.dim()) for x in tensors)
        outputs: tuple[Layout, ...] | None = None
        if written is not None and isinstance(tensors[written], ShardedTensor) and not writes_beside(func):
            outputs = (inputs[written],)
    else:
        choice = chosen(factors, tensors, mesh, written)
        inputs, outputs = choice.inputs, choice.outputs
    whole = memory_on(mesh).runs_whole((*inputs, *(outputs or ())))
    once = factors is None and (needs_single_run(func, mesh) or writes_beside(func))
    if rule is None or factors is None:
        return OpPlan(func, inputs, outputs, mesh, whole, None, written, once=once)
    bounds = () if rule.bounds is None or whole else rule.bounds(call)
    if not leaves_out(mesh):
        bounds = tuple(bound for bound in bounds if not bound.is_seen)
    return OpPlan(func, inputs, outputs, mesh, whole, rule, written, bounds)


def inputs_of(tensors: Sequence[torch.Tensor]) -> list[Input]:
    """What the chooser sees of tensors."""
    return [
        Input(x._layout if isinstance(x, ShardedTensor) else None, hinted(x.shape), x.dtype.itemsize) for x in tensors
    ]


def chosen(factors: Factors, tensors: Sequence[torch.Tensor], mesh: DeviceMesh, written: int | None = None) -> Choice:
    """The layouts that a call in factor notation is computed in."""
    given, itemsize = inputs_of(tensors), max((x.dtype.itemsize for x in tensors), default=4)
    choice = choose(factors, given, mesh, itemsize, written)
    if written is not None and choice.inputs[written] is not choice.outputs[0]:
        # What is written in place cannot become pending: everything is resolved first.
        choice = choose(replace(factors, linear="no", reduces=None), given, mesh, itemsize, written)
    return choice


def factors_of(rule: Rule, call: BoundCall) -> Factors | None:
    """The factors of a call. Rules take calls that are right: what is wrong with others, torch says."""
    if rule.of_nothing is not None and any(0 in x.shape for x in call.tensors):
        return None
    try:
        factors = rule.factors(call)
    except STUMBLES as error:
        raise let_torch_say(call) or error from None
    if factors is not None and [len(dims) for dims in factors.inputs] != [x.dim() for x in call.tensors]:
        shapes = ", ".join(str(tuple(x.shape)) for x in call.tensors)
        fault = RuntimeError(f"the rule of {call.func} is not made for tensors of the shapes {shapes}")
        raise let_torch_say(call) or fault
    if factors is None or factors.linear == "no":
        return factors
    if has_odd_number(call.args, call.kwargs):
        return replace(factors, linear="no", reduces=None)
    return replace(factors, linear="no") if _loses_wraps(call) else factors


_SHORT = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32})
"""Whole numbers whose sums begin again at the other end, where they are too large."""


def _loses_wraps(call: BoundCall) -> bool:
    """Whether a call converts pending sums of such numbers: 200 + 100 is 44 in bytes, but not of 200.0 and 100.0."""
    short = [x for x in call.tensors if isinstance(x, ShardedTensor) and x._layout.pending and x.dtype in _SHORT]
    return bool(short) and any(spec is not None and spec.dtype != short[0].dtype for spec in whole_results(call))


def _common_mesh(tensors: Sequence[torch.Tensor]) -> DeviceMesh:
    """The mesh an op computes on: the largest, the first of these."""
    meshes = [x._layout.mesh for x in tensors if isinstance(x, ShardedTensor)]
    return max(meshes, key=lambda mesh: mesh.num_devices)


def _written(call: BoundCall) -> int | None:
    """Which of the tensors the op writes to, if any."""
    for i, argument in enumerate(call.func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = call.args[i] if i < len(call.args) else call.kwargs.get(argument.name)
            if isinstance(value, torch.Tensor):
                return next(k for k, x in enumerate(call.tensors) if x is value)
    return None
