"""Rows for what moves values between devices: what the gradients of its results say about its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, final

import optree

from ..ops.creation import zeros
from ..recording.op import Argument, Op, RecordedCall
from ..recording.values import TensorValue

__all__ = ["ROWS", "Backward", "Contribution", "row_of", "values_of"]

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
    def present(self) -> list[TensorValue]:
        """The gradients that there are."""
        return [grad for grad in self.grads if grad is not None]

    def filled(self) -> list[TensorValue]:
        """The gradients of all results, zeros where there are none."""
        return [
            zeros(kind.shape, kind.dtype, kind.device) if grad is None else grad
            for grad, kind in zip(self.grads, self.call.types, strict=True)
        ]


Row: TypeAlias = Callable[..., Iterable[Contribution]]
"""Called as `row(back, *arguments of the call)`."""

ROWS: dict[Op, Row] = {}
"""The ops whose gradients have rows of their own. Bound: the ops there are. Cleared: never."""


def row_of(*ops: Op) -> Callable[[Row], Row]:
    """Make a function the row of these ops."""

    def register(function: Row) -> Row:
        ROWS.update(dict.fromkeys(ops, function))
        return function

    return register


def values_of(call: RecordedCall) -> list[TensorValue]:
    """The tensors among a call's arguments, in order."""
    leaves: list[Argument] = optree.tree_leaves((call.args, dict(call.kwargs)))  # type: ignore[arg-type]
    return [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
