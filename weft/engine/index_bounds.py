"""Indices out of range: refused in every form, as torch refuses them, though no device has the whole dim to look at.

What all processes have of an index, they all refuse alike. Of an index that is split over processes each sees its part:
who finds a fault raises, and the others are told when they wait for it, as with any error of one process. To agree on
it first would cost every lookup an exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..rules.bounds import Bound
from ..runtime.processes import world
from .sharded import ShardedTensor

__all__ = ["check_bounds", "check_index"]


def check_bounds(bounds: Sequence[Bound], tensors: Sequence[torch.Tensor], laid: Sequence[ShardedTensor]) -> None:
    """Refuses a call with an index out of range: the tensors it was given, and as they were laid out for it."""
    is_cut = any(laid[0]._layout.splits[bound.dim] for bound in bounds)
    for bound in bounds:
        given, brought = tensors[bound.at], laid[bound.at]
        is_whole = not isinstance(given, ShardedTensor) or not (given._layout.pending or given._layout.split_axes)
        # Where each device has all of the dims, torch itself looks, but only at the part of the index that is there.
        if is_cut or (is_whole and brought._layout.split_axes and world.current().count > 1):
            check_index(given if is_whole else brought, bound)


def check_index(index: torch.Tensor, bound: Bound) -> None:
    """Refuses an index out of range, in what this process has of it."""
    if not isinstance(index, ShardedTensor):
        _check(index, bound)
        return
    # Where nothing of it is split, all pieces are the same.
    for piece in index._value.pieces if index._layout.split_axes else index._value.pieces[:1]:
        _check(piece, bound)


def _check(index: torch.Tensor, bound: Bound) -> None:
    if not index.numel() or index.is_meta or index.is_floating_point():  # torch refuses the latter by itself
        return
    if index.device.type != "cpu" or type(index) is not torch.Tensor:
        # As torch does on accelerators: the device finds it, so that the host need not wait. So does compiled code.
        is_right = ((index >= bound.least) & (index < bound.size)).all()
        torch._assert_async(is_right, bound.text())
        return
    least, most = (int(end) for end in torch.aminmax(index))
    if least < bound.least or most >= bound.size:
        raise bound.error(bound.text(least if least < bound.least else most))
