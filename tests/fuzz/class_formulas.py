"""Gradients for which torch has two formulas: one for plain tensors, and one for classes of tensors and `torch.func`.

They differ where something is infinite or zero: `median()` and other results that are one element of many give the other elements
0 or nan, products with two zeros 0 or nan, `cumprod` divides by its factors or leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .program import Program
from .running import Outcome, run_plain

__all__ = ["run_plain_as_classes"]


class _Onlooker(TorchDispatchMode):
    """Changes nothing, but for torch: while somebody looks on, it takes the formulas that suit classes."""

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


def run_plain_as_classes(program: Program) -> Outcome:
    """What plain torch gives by the formulas for classes."""
    with _Onlooker():
        return run_plain(program)
