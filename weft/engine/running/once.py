"""Ops without a rule that every process runs once, on whole values, those that hold no shard included.

- Random ops: all devices must get the same numbers, and all generators must move on alike.
- Ops that give a number, or tensors whose size depends on values, on a mesh that leaves some processes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...caches import cached
from ...rules.call import BoundCall
from ...runtime.machine import residence
from ...runtime.processes.mesh_processes import leaves_out
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ..moves.movement import from_plain
from ..op_kind import for_each_result, kind_of, written_argument
from ..sharded import ShardedTensor, wrap
from ..writes.writing import store, written_tensors

__all__ = ["is_drawn", "is_foreseen", "is_random", "needs_single_run", "run_once", "writes_beside"]


@cached(8192)
def is_random(func: torch._ops.OpOverload) -> bool:
    """Whether an op draws random numbers.

    >>> is_random(torch.ops.aten.bernoulli.default), is_random(torch.ops.aten.add.Tensor)
    (True, False)
    """
    return torch.Tag.nondeterministic_seeded in func.tags


_LEFT_BEHIND = {torch.ops.aten._cudnn_rnn.default: (3, 4)}
"""Which results a kernel leaves for the way back: beside what it needs, they hold what was in memory."""


def is_drawn(func: torch._ops.OpOverload, position: int) -> bool:
    """Whether one of the results of an op is made of random numbers, which all processes have to draw alike.

    >>> is_drawn(torch.ops.aten._cudnn_rnn.default, 0), is_drawn(torch.ops.aten._cudnn_rnn.default, 3)
    (True, False)
    """
    return is_random(func) and position not in _LEFT_BEHIND.get(func, ())


_TELLS_SIZES = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Ops whose results that are numbers are sizes of their inputs: the longest sequence."""


@cached(8192)
def is_foreseen(func: torch._ops.OpOverload) -> bool:
    """Whether the shapes and dtypes of its inputs tell what an op gives.

    >>> is_foreseen(torch.ops.aten.mm.default), is_foreseen(torch.ops.aten.nonzero.default)
    (True, False)
    """
    if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
        return False
    if func in _TELLS_SIZES:
        return True
    return all("Tensor" in str(output.type) for output in func._schema.returns)


@cached(8192)
def _is_told(func: torch._ops.OpOverload) -> bool:
    """Whether torch tells what an op gives without computing it."""
    return is_foreseen(func) and bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta"))


def needs_single_run(func: torch._ops.OpOverload, mesh: DeviceMesh) -> bool:
    """Whether an op without a rule has to be run by every process on whole values."""
    if is_random(func):
        return len(set(residence(mesh).memories)) > 1 or leaves_out(mesh)
    return leaves_out(mesh) and not _is_told(func)


@cached(8192)
def writes_beside(func: torch._ops.OpOverload) -> bool:
    """Whether an op writes to arguments that it does not return.

    >>> writes_beside(torch.ops.aten.rrelu_with_noise.default), writes_beside(torch.ops.aten.add_.Tensor)
    (True, False)
    """
    returned = sum(1 for output in func._schema.returns if output.alias_info is not None and output.alias_info.is_write)
    return len(kind_of(func).written) > returned


def run_once(call: BoundCall, values: Sequence[torch.Tensor], mesh: DeviceMesh) -> object:
    """Runs an op on whole values of its tensors, the same in every process; tensors that it gives are replicated."""
    result = call.with_tensors(values)()
    if writes_beside(call.func):
        written = list(written_tensors(call))
        for x, value in zip(call.tensors, values, strict=True):
            if isinstance(x, ShardedTensor) and any(x is each for each in written):
                store(x, value, str(call))

    def given(position: int, value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        same = written_argument(call, position)
        if isinstance(same, ShardedTensor):
            store(same, value, str(call))
            return same
        drawn = str(call) if is_drawn(call.func, position) else None  # processes that are seeded differently are told
        x = from_plain(value, Layout.replicated(mesh, value.dim()), brought_to=drawn)
        # Some kernels give results with gaps, which copies of them do not have.
        return wrap(x._value.pieces, x._layout, x.shape, dtype=x.dtype, strides=value.stride())

    return for_each_result(result, given)
