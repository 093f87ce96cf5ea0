"""`settle_totals`: in programs that a compiler traces, what is written to contributions is written to the whole value too."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..memory.carrying import carried
from ..sharded import ShardedTensor
from ..total import known_total
from .copying import copy_once

__all__ = ["settle_totals", "write_total"]


def settle_totals(written: Iterable[ShardedTensor]) -> None:
    """After a write to these tensors: the whole values of those that are pending are right again, where they were known.

    A compiler is given the whole value of such a tensor, and takes what is written to that for what is written to the tensor.
    """
    for x in written:
        total, layout = x._value.total, x._layout
        if total is not None and total.written[0]:
            shape, strides = tuple(x.shape), x.stride()
            copy_once(
                total.value, carried(x._value.pieces, layout, layout.resolved, shape, strides, x.dtype, "a write")[0]
            )
            total.written[0] = False


def write_total(x: ShardedTensor, value: torch.Tensor) -> bool:
    """Writes a value to the whole of a pending tensor, where both are known whole and nobody has asked for contributions."""
    if (
        not isinstance(value, ShardedTensor)
        or not x._layout.pending
        or value._layout is not x._layout
        or x._value.is_made
    ):
        return False
    total, new = known_total(x), known_total(value)
    if total is None or new is None or x._value.is_made:
        return False
    copy_once(total, new)
    return True
