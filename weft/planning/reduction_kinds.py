"""Which pending reductions may become which, and in which order they may be resolved."""

from __future__ import annotations

from ..errors import PlanError
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from .step import live_pending

__all__ = ["check_kinds"]

_LINEAR = {ReduceOp.SUM, ReduceOp.AVG}


def check_kinds(source: Layout, target: Layout) -> None:
    """Raises where reductions would change their kind or be resolved in an order that matters."""
    if source.mesh == target.mesh:
        after = dict(target.pending)
        for axis, op in source.pending:
            if axis in after and after[axis] is not op:
                raise PlanError(
                    f"a pending {op} over mesh axis {axis!r} cannot become a pending {after[axis]}: its contributions mean "
                    f"something else. Resolve it first: all_reduce(x, {str(op)!r}, reduce_axes=({axis!r},))"
                )
    same = source.mesh == target.mesh
    kept = set(source.pending_axes) & set(target.pending_axes) if same else set()
    resolved = [(axis, op) for axis, op in live_pending(source) if axis not in kept]
    kinds = {op for _, op in resolved}
    if len(kinds) > 1 and not kinds <= _LINEAR:
        named = " and ".join(f"{op} over {axis!r}" for axis, op in resolved)
        axis, op = resolved[0]
        raise PlanError(
            f"pending {named} give different results in different orders: "
            f"say the order, one at a time, beginning for instance with all_reduce(x, {str(op)!r}, reduce_axes=({axis!r},))"
        )
    begun = [(axis, op) for axis, op in live_pending(target) if axis not in kept]
    for axis, op in resolved:
        for other, kind in begun:
            if op is not kind:
                raise PlanError(
                    f"a pending {op} over mesh axis {axis!r} cannot become a pending {kind} over {other!r}: its contributions "
                    f"mean something else. Resolve it first: all_reduce(x, {str(op)!r}, reduce_axes=({axis!r},))"
                )
