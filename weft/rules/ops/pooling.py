"""Pooling and resampling: batch and channels are independent.

The space that is pooled over is whole, but for dims of which devices read windows: these may be split.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import torch

from ...sharding.placements import ReduceOp
from ..call import BoundCall
from ..dims import one_each
from ..factors import Factors
from ..registry import Rule, ops_named, rules

__all__ = ["pooling"]

aten = torch.ops.aten


def _over_space(space: int, *, linear: bool) -> Rule:
    """The rule of an op on (…, space): the dims ahead of space are those of every tensor."""

    def factors(call: BoundCall) -> Factors | None:
        return pooling(call, space, linear=linear)

    return Rule(factors, _local_sizes, of_nothing=ReduceOp.SUM)


def pooling(
    call: BoundCall, space: int, windowed: AbstractSet[int] = frozenset(), *, linear: bool = False
) -> Factors | None:
    """The factors of an op on (…, space), of which some dims of space are read in windows."""
    shape = call.tensors[0].shape
    ahead = len(shape) - space
    if any(spec.ndim != len(shape) for spec in call.tensors):
        return None
    free = [i for i in range(len(shape)) if i < ahead or i - ahead in windowed]
    dims = one_each(f"d{i}" if i in free else None for i in range(len(shape)))
    outputs = (dims,) * len(call.func._schema.returns)
    sizes = {f"d{i}": shape[i] for i in free}
    linear = linear and call.tensors[0].dtype.is_floating_point  # means of whole numbers are rounded
    return Factors((dims,) * len(call.tensors), outputs, sizes, linear=0 if linear else "no")


def _local_sizes(call: BoundCall, outputs: Sequence[tuple[int, ...]]) -> BoundCall:
    """A whole input's size is said by some gradients: on one device, it is what the result will be."""
    return call.replaced(input_size=list(outputs[0])) if call.has("input_size") else call


_NONLINEAR = {
    1: "adaptive_max_pool1d",
    2: "max_pool2d_with_indices adaptive_max_pool2d",
    3: "max_pool3d_with_indices adaptive_max_pool3d",
}
_LINEAR = {
    1: "avg_pool1d adaptive_avg_pool1d upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d",
    2: "avg_pool2d _adaptive_avg_pool2d upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d "
    "upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    3: "avg_pool3d _adaptive_avg_pool3d upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d",
}
"""Dims of space to ops; the gradient of each is linear in its first input."""

for _table, _linear in ((_NONLINEAR, False), (_LINEAR, True)):
    for _space, _names in _table.items():
        for _op in ops_named(_names):
            rules[_op] = _over_space(_space, linear=_linear)
        for _op in ops_named(" ".join(f"{name}_backward" for name in _names.split())):
            rules[_op] = _over_space(_space, linear=True)
