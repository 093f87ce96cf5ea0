"""The table of rules: torch op to the function that says a call in factor notation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..sharding.geometry import Box
from ..sharding.placements import ReduceOp
from .bounds import Bound
from .factors import Factors, parse

__all__ = ["Call", "Rule", "register_rule", "rule_for", "rules"]

Arg = object


@dataclass(frozen=True, slots=True)
class Spec:
    """What a rule sees of a tensor: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None
    """Of results, those that plain torch gives them; rules see none."""

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class Call:
    """An op call as rules see it: tensors stand as `Spec`s, also inside lists."""

    func: torch._ops.OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    tensors: tuple[Spec, ...]
    """All tensors of args and kwargs, in order."""

    def arg(self, name: str, default: object = None) -> object:
        """An argument by its name in the op's schema."""
        for i, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                if i < len(self.args):
                    return self.args[i]
                if name in self.kwargs:
                    return self.kwargs[name]
                return argument.default_value if argument.has_default_value() else default
        return default


LocalArgs = Callable[
    ["Call", Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], tuple[tuple[object, ...], dict[str, object]]
]
"""(call, local input shapes, local output shapes) -> the args and kwargs to run on one device, tensors still as Specs."""


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


Local = Callable[
    [torch._ops.OpOverload, tuple[object, ...], dict[str, object], Sequence[Region], Sequence[Region]],
    object,
]
"""(op, args, kwargs, regions of the input tensors, regions of the outputs) -> what the op gives on one device."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How an op may be split: its factors, and how its other arguments change on one device."""

    factors: Callable[[Call], Factors | None]
    """None: this call cannot be said in factors; it runs on replicas."""
    local_args: LocalArgs | None = None
    local: Local | None = None
    """What one device runs instead of the op, where it needs to know which part of the whole it has."""
    local_op: torch._ops.OpOverload | None = None
    """What runs on one device instead: shards may lie differently in memory than the whole does."""
    of_nothing: ReduceOp | None = None
    """The reduction whose neutral element stands for what a device computes from no elements; None: the op knows.

    It is for devices that have nothing of a whole that is something: what there is of nothing at all, torch says.
    """
    bounds: Callable[[Call], tuple[Bound, ...]] | None = None
    """What the indices among the tensors may be; None: it has none."""


rules: dict[torch._ops.OpOverload, Rule] = {}
"""Bound: the ops that have rules, those of `register_rule` included. Cleared: never."""


def rule_for(func: torch._ops.OpOverload) -> Rule | None:
    """The rule of an op, if it has one."""
    return rules.get(func)


def row(text: str, **options: object) -> Rule:
    """A rule from one row of factor notation."""
    notation = parse(text)
    return Rule(lambda call: notation.meet([spec.shape for spec in call.tensors], **options))


def register_rule(op: torch._ops.OpOverload | torch._ops.OpOverloadPacket, notation: str, **options: object) -> None:
    """Says in factor notation how an op of your own may be split.

    >>> import torch
    >>> @torch.library.custom_op("demo::outer_sum", mutates_args=())
    ... def outer_sum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ...     return a[:, None] + b[None, :]
    >>> register_rule(torch.ops.demo.outer_sum, "m, n -> m n")
    """
    rule = row(notation, **options)
    overloads = [getattr(op, name) for name in op.overloads()] if isinstance(op, torch._ops.OpOverloadPacket) else [op]
    for overload in overloads:
        if not isinstance(overload, torch._ops.OpOverload):
            raise TypeError(f"register_rule takes a torch op such as torch.ops.aten.mm, but got {op!r}")
        rules[overload] = rule
