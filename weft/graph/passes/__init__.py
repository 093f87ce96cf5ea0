"""What is done to a program before it runs: each pass keeps what it computes."""

from weft.graph.passes.aliasing import shared_outputs
from weft.graph.passes.common import merge_common_subexpressions
from weft.graph.passes.copies import drop_needless_copies
from weft.graph.passes.dead import drop_dead_code
from weft.graph.passes.hoisting import hoist_constant_movements
from weft.graph.passes.pipeline import optimize
from weft.graph.passes.scheduling import start_movements_early

__all__ = [
    "drop_dead_code",
    "drop_needless_copies",
    "hoist_constant_movements",
    "merge_common_subexpressions",
    "optimize",
    "shared_outputs",
    "start_movements_early",
]
