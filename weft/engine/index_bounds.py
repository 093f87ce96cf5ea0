"""Indices out of range: refused in every form, as torch refuses them, though no device has the whole dim to look at.

What all processes have of an index, they all refuse alike. Of an index that is split over processes each sees its part:
who finds a fault raises, and the others raise the same when they next wait for it (`running.refusals`). Most lookups of a
split index exchange nothing, so to agree on it first would cost each an exchange; `WEFT_CHECK=1` pays that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..rules.bounds import Bound
from ..rules.ops.indexing import MASKS
from ..runtime.processes.agreement.faults import agreed_fault
from ..runtime.processes.agreement.same_call import is_always_on
from ..runtime.processes.mesh_processes import owners_of, spans
from ..runtime.traced import is_traced
from .running.refusals import all_have_some, tell_others
from .sharded import ShardedTensor

__all__ = ["check_bounds", "check_index", "is_known_whole", "refuse_whole_indices"]


def check_bounds(bounds: Sequence[Bound], tensors: Sequence[torch.Tensor], laid: Sequence[ShardedTensor]) -> None:
    """Refuses a call with an index out of range: the tensors it was given, and as they were laid out for it."""
    splits = laid[0]._layout.splits
    is_cut = bool(splits) and any(splits[bound.dim] for bound in bounds)
    is_missing = spans(laid[0].mesh) and not all(map(all_have_some, laid))
    for bound in bounds:
        given, brought = tensors[bound.at], laid[bound.at]
        is_whole = is_known_whole(given)
        # Where each device has all of the dims, torch itself looks, but only at the part of the index that is there, and not
        # where there is nothing to index.
        is_part = bool(brought._layout.split_axes) and spans(brought.mesh)
        if is_cut or (is_whole and is_missing) or (is_part and (is_whole or is_always_on())):
            check_index(given if is_whole else brought, bound)


def refuse_whole_indices(bounds: Sequence[Bound], tensors: Sequence[torch.Tensor]) -> None:
    """Refuses an index out of range that all processes have whole, before anything moves for the call."""
    if any(tensors[bound.at].dtype in MASKS for bound in bounds):
        return
    for bound in bounds:
        if is_known_whole(tensors[bound.at]):
            check_index(tensors[bound.at], bound)


def is_known_whole(index: torch.Tensor) -> bool:
    """Whether every device has all of an index.

    >>> is_known_whole(torch.tensor([0, 2]))
    True
    """
    return not isinstance(index, ShardedTensor) or not (index._layout.pending or index._layout.split_axes)


def check_index(index: torch.Tensor, bound: Bound) -> None:
    """Refuses an index out of range, in what this process has of it."""
    if not isinstance(index, ShardedTensor):
        fault = _fault(index, bound)
    else:
        # Where nothing of it is split, all pieces are the same.
        is_split = bool(index._layout.split_axes)
        pieces = index._value.pieces if is_split else index._value.pieces[:1]
        fault = next(filter(None, (_fault(piece, bound) for piece in pieces)), "")
        if is_split and not index.is_meta and not is_traced():
            fault = agreed_fault(fault, owners_of(index.mesh))
    if fault:
        error = bound.error(fault)
        tell_others(error, [index])
        raise error


def _fault(index: torch.Tensor, bound: Bound) -> str:
    if not index.numel() or index.is_meta or index.is_floating_point():  # torch refuses the latter by itself
        return ""
    if index.device.type != "cpu" or type(index) is not torch.Tensor:
        # As torch does on accelerators: the device finds it, so that the host need not wait. So does compiled code.
        is_right = (index >= bound.least) & (index < bound.size)
        if bound.ignored is not None:
            is_right |= index == bound.ignored
        torch._assert_async(is_right.all(), bound.text())
        return ""
    if bound.ignored is not None:
        index = index[index != bound.ignored]
        if not index.numel():
            return ""
    least, most = (int(end) for end in torch.aminmax(index))
    if bound.least <= least and most < bound.size:
        return ""
    return bound.text(least if least < bound.least else most)
