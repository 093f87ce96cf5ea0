"""Joining tensors along a split dim: the result is split like the largest of them."""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from operator import is_

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import alike, rearranged
from ...engine.running.repeating import repeat_by_rule
from ...engine.sharded import ShardedTensor
from ...engine.strides.restriding import as_op_gives
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall

aten = torch.ops.aten


@handler(aten.cat.default)
def _cat(call: BoundCall) -> object:
    tensors = call.tensor_list("tensors")
    # Torch lets empty tensors of one dim stand among any others.
    joined = [x for x in tensors if tuple(x.shape) != (0,)] or tensors[:1]
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    joined = [x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype) for x in joined]
    if not any(isinstance(x, ShardedTensor) for x in joined):
        return run_by_rule(call)
    dim = call.dim("dim", joined[0].dim())
    if not any(isinstance(x, ShardedTensor) and x._layout.splits[dim : dim + 1] not in ((), ((),)) for x in joined):
        of_rule = (
            call if len(joined) == len(tensors) and all(map(is_, joined, tensors)) else call.replaced(tensors=joined)
        )
        result = run_by_rule(of_rule)
        call.repeat = repeat_by_rule(call, result) if of_rule is call else None
        return result if of_rule is call else as_op_gives(call, result, whole=True)
    if any(x.dim() != joined[0].dim() for x in joined):
        raise RuntimeError(f"Tensors must have same number of dimensions: got {[x.dim() for x in joined]}")
    result = _joined(joined, dim, str(call))
    return result if len({x.dtype for x in tensors}) == 1 else as_op_gives(call, result, whole=True)


def _joined(tensors: list[torch.Tensor], dim: int, op: str) -> ShardedTensor:
    laid = alike(tensors, op)
    largest = max(laid, key=lambda x: x.numel())
    shape = list(largest.shape)
    for x in laid:
        if any(a != b for d, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if d != dim):
            raise RuntimeError(
                f"Sizes of tensors must match except in dimension {dim}, but got {[tuple(x.shape) for x in tensors]}"
            )
    starts = [0, *accumulate(x.shape[dim] for x in laid)]
    shape[dim] = starts[-1]
    parts = [Part.along(dim, Run(x.shape[dim], target=starts[i]), x.shape, i) for i, x in enumerate(laid)]
    return rearranged(laid, largest._layout, shape, parts, op, lambda *pieces: aten.cat.default(pieces, dim))
