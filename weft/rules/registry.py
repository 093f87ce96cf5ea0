"""The table of rules: torch op to the function that says a call in factor notation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..sharding.geometry import Box
from ..sharding.placements import ReduceOp
from .bounds import Bound
from .call import Args, BoundCall, Kwargs
from .factors import Factors, parse

__all__ = ["Region", "Rule", "Spec", "register_rule", "rule_for", "rules"]


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


LocalArgs = Callable[[BoundCall, Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], tuple[Args, Kwargs]]
"""(call on one device, its input shapes, its output shapes) -> the args and kwargs to run there."""


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
    local_op: torch._ops.OpOverload | None = None
    """What runs on one device instead: shards may lie differently in memory than the whole does."""
    of_nothing: ReduceOp | None = None
    """The reduction whose neutral element stands for what a device computes from no elements; None: the op knows.

    It is for devices that have nothing of a whole that is something: what there is of nothing at all, torch says.
    """
    bounds: Callable[[BoundCall], tuple[Bound, ...]] | None = None
    """What the indices among the tensors may be; None: it has none."""


rules: dict[torch._ops.OpOverload, Rule] = {}
"""Bound: the ops that have rules, those of `register_rule` included. Cleared: never."""


def rule_for(func: torch._ops.OpOverload) -> Rule | None:
    """The rule of an op, if it has one."""
    return rules.get(func)


def row(text: str, **options: object) -> Rule:
    """A rule from one row of factor notation."""
    notation = parse(text)
    return Rule(lambda call: notation.meet([x.shape for x in call.tensors], **options))


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
