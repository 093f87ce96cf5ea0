"""The table of transposes: for each op, what the gradient of its results says about its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, final

from weft.graph.ops.creation import zeros
from weft.graph.ops.reductions import sum as reduce_sum
from weft.graph.recording.op import RecordedCall
from weft.graph.recording.types import TensorType
from weft.graph.recording.values import TensorValue

__all__ = ["NO_GRADIENT", "TRANSPOSES", "Backward", "Contribution", "differentiable", "transpose_of", "unbroadcast"]

Contribution: TypeAlias = tuple[TensorValue, TensorValue | None]
"""An argument, and what one call adds to its gradient."""


@final
@dataclass(frozen=True, slots=True)
class Backward:
    """One call, seen from its results: the values they had, and their gradients where there are any."""

    call: RecordedCall
    results: tuple[TensorValue, ...]
    grads: tuple[TensorValue | None, ...]

    @property
    def result(self) -> TensorValue:
        """The only result."""
        return self.results[0]

    @property
    def grad(self) -> TensorValue:
        """The gradient of the only result."""
        grad = self.grads[0]
        assert grad is not None
        return grad

    def filled(self) -> list[TensorValue]:
        """The gradients of all results, zeros where there are none."""
        return [
            zeros(kind.shape, kind.dtype, kind.device) if grad is None else grad
            for grad, kind in zip(self.grads, self.call.types, strict=True)
        ]


Transpose: TypeAlias = Callable[[Backward], Iterable[Contribution]]

TRANSPOSES: dict[str, Transpose] = {}
"""By the name of the op."""

NO_GRADIENT = frozenset(
    [
        "all",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "buffer_load",
        "ceil",
        "constant",
        "dim_to_tensor",
        "equal",
        "floor",
        "floordiv",
        "full",
        "greater",
        "greater_equal",
        "is_inf",
        "is_nan",
        "less",
        "less_equal",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "nonzero",
        "not_equal",
        "one_hot",
        "arange",
        "round",
        "shape_to_tensor",
        "sign",
        "trunc",
    ]
)
"""The ops whose results are flat almost everywhere, or no floats, or depend on nothing."""


def transpose_of(*names: str) -> Callable[[Transpose], Transpose]:
    """Make a function the row of these ops."""

    def register(function: Transpose) -> Transpose:
        for name in names:
            TRANSPOSES[name] = function
        return function

    return register


def differentiable(kind: TensorType) -> bool:
    """Whether values of a type have gradients."""
    return kind.dtype.is_floating_point or kind.dtype.is_complex


def unbroadcast(grad: TensorValue, to: TensorValue) -> TensorValue:
    """The transpose of stretching `to` to the gradient's shape: the sum over what was stretched."""
    extra = grad.rank - to.rank
    stretched = [
        i for i in range(grad.rank) if i < extra or (to.shape[i - extra] == 1 and grad.shape[i] != to.shape[i - extra])
    ]
    if stretched:
        grad = reduce_sum(grad, stretched, keepdims=True).reshape(to.shape)
    return grad.cast(to.dtype)


def values_in(argument: object) -> list[TensorValue]:
    """The values among a call's arguments."""
    if isinstance(argument, TensorValue):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [value for item in argument for value in values_in(item)]
    return []
