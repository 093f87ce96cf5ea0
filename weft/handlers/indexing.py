"""Indexing whose results depend on values: a mask is the indices where it is true, and rows stay where they are found.

Rows: see `weft.handlers.ragged`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..engine.execute import reads_written, run_by_rule
from ..engine.handlers import handler
from ..engine.moves.movement import from_plain, to_plain
from ..engine.sharded import ShardedTensor, as_sharded
from ..engine.strides.restriding import as_op_gives
from ..engine.writes.overlapping import parted
from ..engine.writes.writing import store
from ..rules.call import BoundCall
from ..rules.ops.indexing import MASKS, has_masks
from ..runtime.traced import is_traced
from ..sharding.layout import Layout
from .ragged.additions import added
from .ragged.lookups import looked_up

aten = torch.ops.aten


def _counted(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Masks as the indices, one per dim, where they are true."""
    result: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            result.append(index)
        else:
            _check_shape(x, index, len(result))
            found = _found_everywhere(index)
            result += [aten.select.int(found, 1, d) for d in range(index.dim())]
    return result


def _check_shape(x: torch.Tensor, mask: torch.Tensor, first: int) -> None:
    """Refuses a mask of another shape than the dims of `x` from some one on have: indices alone would not show it."""
    for k, size in enumerate(mask.shape):
        dim = first + k
        if dim >= x.dim():
            raise IndexError(f"too many indices for tensor of dimension {x.dim()}")
        if size != x.shape[dim]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {k} does not match the shape of the indexed tensor "
                f"{list(x.shape)} at index {dim}"
            )


@handler(aten.index.Tensor, may_be_direct=True)
def _index(call: BoundCall) -> object:
    indices = call.optional_list("indices")
    if not has_masks(indices):
        rows = looked_up(call)
        return run_by_rule(call) if rows is NotImplemented else rows
    return call.replaced(indices=_counted(call.tensor("self"), indices))()


@handler(aten.index_select.default, may_be_direct=True)
def _index_select(call: BoundCall) -> object:
    rows = looked_up(call)
    return run_by_rule(call) if rows is NotImplemented else rows


@handler(aten.index_add.default, may_be_direct=True)
def _index_add(call: BoundCall) -> object:
    rows = added(call) if call.arg("alpha") == 1 else NotImplemented
    return run_by_rule(call) if rows is NotImplemented else rows


@handler(aten.index_add_.default, may_be_direct=True)
def _index_add_(call: BoundCall) -> object:
    x = call.tensor("self")
    if call.arg("alpha") != 1 or not isinstance(x, ShardedTensor):
        return run_by_rule(call)
    reads_written(call, 0)  # which is refused, or read before anything is written
    rows = added(BoundCall(aten.index_add.default, call.args, call.kwargs))
    if rows is NotImplemented:
        return run_by_rule(call)
    store(x, as_sharded(rows), str(call))
    return x


def _found_everywhere(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask is true, on every device: each takes what it has of what is indexed, and no index has to be sent."""
    if not isinstance(mask, ShardedTensor):
        return mask.nonzero()
    return as_sharded(run_by_rule(BoundCall(aten.nonzero.default, (mask,), {})))


@handler(aten.nonzero.default)
def _nonzero(call: BoundCall) -> object:
    """What is found in a tensor that is split is split like it, row by row: what is looked up by it stays where it is then."""
    x = call.tensor("self")
    if not isinstance(x, ShardedTensor) or is_traced() or x.is_meta or x._layout.pending or not x._layout.split_axes:
        return run_by_rule(call)
    seen = x if x.dtype is torch.bool else as_sharded(aten.ne.Scalar(x, 0))
    found = to_plain(seen, str(call), implicit=True).nonzero()
    return from_plain(found, Layout(x.mesh, (x._layout.split_axes, ())))


@handler(aten.index_put.default, aten.index_put_.default)
def _index_put(call: BoundCall) -> object:
    x, indices, values = call.tensor("self"), call.optional_list("indices"), call.tensor("values")
    if not has_masks(indices):
        rows = added(call) if call.flag("accumulate") and call.func is aten.index_put.default else NotImplemented
        return run_by_rule(call) if rows is NotImplemented else rows
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    if len(given) == 1 and values.numel() == 1 and not call.flag("accumulate"):
        ((first, mask),) = given
        _check_shape(x, mask, first)
        beside = aten.reshape.default(mask, [*mask.shape, *[1] * (x.dim() - first - mask.dim())])
        filled = aten.masked_fill_.Tensor if call.func is aten.index_put_.default else aten.masked_fill.Tensor
        if not (torch.can_cast(values.dtype, x.dtype) or values.is_meta or is_traced()):
            torch.zeros((), dtype=x.dtype).fill_(values.item())  # which refuses a number that the dtype does not have
        value = aten.reshape.default(aten._to_copy.default(values, dtype=x.dtype), [])
        result = filled(x, parted(x, beside), value)
        return result if filled is aten.masked_fill_.Tensor else as_op_gives(call, result, whole=True)
    if x.is_meta:  # how many are true is not known, and not needed
        return x if call.func is aten.index_put_.default else aten.empty_like.default(x)
    return call.replaced(indices=_counted(x, indices))()


@handler(aten.bincount.default)
def _bincount(call: BoundCall) -> object:
    """Counts are sums over what each device has."""
    x, weights, least = call.tensor("self"), call.optional("weights"), call.integer("minlength")
    is_counted = x.dim() == 1 and x.dtype is not torch.bool and not x.dtype.is_floating_point
    if not isinstance(x, ShardedTensor) or not is_counted or least < 0:
        return run_by_rule(call)
    if x.numel() and x.min().item() < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    count = max(least, int(x.max().item()) + 1 if x.numel() else 0)
    if weights is None or not x.numel():  # of nothing torch does not look at weights
        given, dtype = aten.ones_like.default(x, dtype=torch.int64), torch.int64
    else:
        dtype = torch.float32 if weights.dtype is torch.float32 else torch.float64
        given = aten._to_copy.default(weights, dtype=dtype)
    places = x if x.dtype is torch.int64 else aten._to_copy.default(x, dtype=torch.int64)  # short ones are no indices
    return aten.index_add.default(torch.zeros(count, dtype=dtype, device=x.device), 0, places, given)
