"""The passes in their order."""

from __future__ import annotations

from ..lowering.program import Program
from .common import merge_common_subexpressions
from .copies import drop_needless_copies
from .dead import drop_dead_code
from .hoisting import hoist_constant_movements
from .scheduling import start_movements_early

__all__ = ["PASSES", "optimize"]

PASSES = (
    drop_dead_code,
    drop_needless_copies,
    merge_common_subexpressions,
    hoist_constant_movements,
    drop_dead_code,
    start_movements_early,
)


def optimize(program: Program) -> None:
    """Run all passes."""
    for run in PASSES:
        run(program)
