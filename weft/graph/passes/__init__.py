"""What is done to a program before it runs: each pass keeps what it computes."""

from .aliasing import shared_outputs
from .common import merge_common_subexpressions
from .copies import drop_needless_copies
from .dead import drop_dead_code
from .hoisting import hoist_constant_movements
from .pipeline import optimize
from .scheduling import start_movements_early

__all__ = [
    "drop_dead_code",
    "drop_needless_copies",
    "hoist_constant_movements",
    "merge_common_subexpressions",
    "optimize",
    "shared_outputs",
    "start_movements_early",
]
