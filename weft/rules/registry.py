"""The table of rules: torch op to the function that says a call in factor notation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch._library.custom_ops import CustomOpDef

from ..sharding.geometry import Box
from ..sharding.placements import ReduceOp
from .bounds import Bound
from .call import BoundCall, Op
from .factors import Factors, parse

__all__ = [
    "Region",
    "Rule",
    "Spec",
    "bounds_of",
    "bounds_without_rules",
    "by_tag",
    "forget_with_rules",
    "ops_named",
    "register_rule",
    "row",
    "rule_for",
    "rules",
    "sized",
]


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a result before it is there: its shape and dtype, and the strides that plain torch gives it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.shape)


LocalArgs = Callable[[BoundCall, Sequence[tuple[int, ...]]], BoundCall]
"""(call on one device, the shapes of its outputs there) -> the call with its other arguments as that device needs them."""


@dataclass(frozen=True, slots=True)
class Region:
    """Which part of a whole tensor one device has."""

    box: Box
    whole: tuple[int, ...]
    """The shape of the whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(stop - start for start, stop in self.box)

    def is_whole(self, dim: int) -> bool:
        """Whether the part has all of a dim."""
        return self.box[dim] == (0, self.whole[dim])


Local = Callable[[BoundCall, Sequence[Region], Sequence[Region]], object]
"""(call on one device, regions of its tensors, regions of the outputs) -> what the op gives there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op may be split: its factors, and how its other arguments change on one device."""

    factors: Callable[[BoundCall], Factors | None]
    """None: this call cannot be said in factors; it runs on replicas."""
    local_args: LocalArgs | None = None
    local: Local | None = None
    """What one device runs instead of the op, where it needs to know which part of the whole it has."""
    looks_for: bool = False
    """Whether `local` has to find values, which tensors without memory have none of."""
    local_op: Op | None = None
    """What runs on one device instead: shards may lie differently in memory than the whole does."""
    of_nothing: ReduceOp | None = None
    """The reduction whose neutral element stands for what a device computes from no elements; None: the op knows.

    It is for devices that have nothing of a whole that is something: what there is of nothing at all, torch says.
    """
    bounds: Callable[[BoundCall], tuple[Bound, ...]] | None = None
    """What the indices among the tensors may be; None: it has none."""
    counts_along: tuple[int, ...] = ()
    """Dims of the first tensor, from the last, along which it matters where a part begins; those of indices have a bound."""
    results: Callable[[BoundCall], tuple[Spec | None, ...]] | None = None
    """What the op gives for whole tensors, where torch does not tell without computing it; None: it does. Strides not said: row by row."""


rules: dict[Op, Rule] = {}
"""Bound: the ops that have rules, those of `register_rule` included. Cleared: never."""


bounds_without_rules: dict[Op, Callable[[BoundCall], tuple[Bound, ...]]] = {}
"""What indices may be of ops that have no rule. Bound: these ops. Cleared: never."""


def bounds_of(call: BoundCall) -> tuple[Bound, ...]:
    """What the indices of a call may be, by its rule or without one; of tensors without dims or elements, torch alone knows.

    >>> import torch
    >>> bounds_of(BoundCall(torch.ops.aten.neg.default, (torch.ones(2),)))
    ()
    """
    rule = rules.get(call.func)
    bounds = bounds_without_rules.get(call.func) if rule is None else rule.bounds
    if bounds is None or not call.tensors[0].dim() or 0 in call.tensors[0].shape:
        return ()
    return bounds(call)


by_tag: dict[torch.Tag, Rule] = {}
"""What torch says of ops outside of its own library to their rule, where they have none in the table. Bound: torch's words. Cleared: never."""


def rule_for(func: Op) -> Rule | None:
    """The rule of an op, if it has one."""
    rule = rules.get(func)
    if rule is None and func.namespace != "aten" and torch.Tag.nondeterministic_seeded not in func.tags:
        return next((by_tag[tag] for tag in func.tags if tag in by_tag), None)
    return rule


def ops_named(names: str) -> Iterator[Op]:
    """The aten ops of these names, their `default` overload where none is said; those that this torch has.

    >>> [str(op) for op in ops_named("mm add.Tensor")]
    ['aten.mm.default', 'aten.add.Tensor']
    """
    for name in names.split():
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if op is not None:
            yield op


def sized(name: str) -> LocalArgs:
    """On one device, an argument that says the sizes of the result says those of its part."""
    return lambda call, outputs: call.replaced(**{name: list(outputs[0])})


def row(text: str, **options: object) -> Rule:
    """A rule from one row of factor notation."""
    notation = parse(text)
    return Rule(lambda call: notation.meet([x.shape for x in call.tensors], **options))


_clearing: list[Callable[[], None]] = []
"""What empties caches. Bound: the calls of `forget_with_rules`, one where a module is imported. Cleared: never."""


def forget_with_rules(clear: Callable[[], None]) -> None:
    """Has what depends on the rules of ops forgotten when another one is registered."""
    _clearing.append(clear)


def register_rule(op: Op | torch._ops.OpOverloadPacket | CustomOpDef, notation: str, **options: object) -> None:
    """Says in factor notation how an op of your own may be split.

    >>> import torch
    >>> @torch.library.custom_op("demo::outer_sum", mutates_args=())
    ... def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ...     return a[:, None] + b[None, :]
    >>> register_rule(outer_sum, "m, n -> m n")
    """
    rule = row(notation, **options)
    given = op._opoverload if isinstance(op, CustomOpDef) else op
    overloads = (
        [getattr(given, name) for name in given.overloads()]
        if isinstance(given, torch._ops.OpOverloadPacket)
        else [given]
    )
    for overload in overloads:
        if not isinstance(overload, Op):
            raise TypeError(
                "register_rule takes what torch.library.custom_op gives, or a torch op such as torch.ops.aten.mm, "
                f"but got {op!r}"
            )
    fitting = [overload for overload in overloads if _fits(notation, overload)]
    if not fitting:
        forms = "; ".join(str(overload._schema) for overload in overloads)
        raise ValueError(
            f"the rule {notation!r} does not fit {op}: it needs one term for each tensor that goes in, and for each that comes out, of {forms}"
        )
    rules.update(dict.fromkeys(fitting, rule))
    for clear in _clearing:
        clear()


def _fits(notation: str, op: Op) -> bool:
    """Whether a rule has as many terms as an op has tensors, to the left and to the right of its arrow."""
    given, _, made = notation.partition("->")
    kinds = [str(argument.type) for argument in op._schema.arguments if not argument.is_out]
    least, most = kinds.count("Tensor"), sum("Tensor" in kind for kind in kinds)
    outputs = [str(output.type) for output in op._schema.returns]
    is_listed = any("List[" in kind and "Tensor" in kind for kind in (*kinds, *outputs))
    return is_listed or (least <= given.count(",") + 1 <= most and made.count(",") + 1 == len(outputs))
