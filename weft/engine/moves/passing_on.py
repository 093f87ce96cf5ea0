"""`passed_on`: a tensor goes to another mesh while both go on working; processes need not come to it in the same order."""

from __future__ import annotations

from ...planning import plan_layouts
from ...runtime import run
from ...runtime.strides import row_major
from ...sharding.layout import Layout
from ...watch import comm_log
from ..sharded import ShardedTensor, wrap, wrap_arriving
from ..views.copy_views import refresh

__all__ = ["passed_on"]


def passed_on(x: ShardedTensor, target: Layout, op: str, purpose: str, tag: int) -> ShardedTensor:
    """The same value on another mesh, on its way; not recorded by autograd, and nothing may be pending.

    Every process of the two meshes calls it, those without a device of `x`'s mesh with a tensor that has no pieces here.
    Waiting for the result also waits until what this process sends has gone.
    """
    source, shape, dtype = x._layout, tuple(x.shape), x.dtype
    assert not source.pending, f"{source} has something pending"
    if x._value.shown is not None:
        refresh((x,))
    if comm_log.is_logging():
        comm_log.log_plan(plan_layouts(source, target, shape, dtype.itemsize), op, implicit=False)
    arriving = run.mail(x._value.pieces, source, target, shape, dtype, op, purpose, tag)
    comm_log.note_end()
    if isinstance(arriving, tuple):
        return wrap(arriving, target, shape, dtype=dtype)
    return wrap_arriving(arriving, target, shape, dtype, row_major(shape), None)
