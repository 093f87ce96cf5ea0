"""What is put together by other means than an op itself lies in memory as the op would have laid it."""

from __future__ import annotations

import math

import torch

from ...rules.call import BoundCall, each_of
from ...runtime.strides import FEW, Strides, in_order
from ...runtime.traced import hinted
from ..memory import memory_of
from ..running.once import is_foreseen
from ..sharded import ShardedTensor, wrap
from ..views.folded import is_unmade
from .whole_results import whole_results

__all__ = ["as_op_gives", "with_strides"]

_LIE_AS_THEY_CAME = frozenset(
    {torch.ops.aten._unsafe_view.default, torch.ops.aten._new_zeros_with_same_feature_meta.default}
)
"""Ops that give views, though by their schema they only read, or tangents, which lie as primals do that torch may hold without memory."""


def as_op_gives(call: BoundCall, result: object, *, whole: bool = False) -> object:
    """The results of an op with the strides that plain torch gives them.

    In one memory an op mostly runs as it is; `whole` says that it did not, so that they have to be looked at there too.
    """
    values = each_of(result)
    if call.func in _LIE_AS_THEY_CAME or isinstance(result, list) or not is_foreseen(call.func):
        return result
    if not any(isinstance(x, ShardedTensor) and (whole or memory_of(x._layout).pieces_are_shards) for x in values):
        return result
    try:
        specs = whole_results(call)
    except RuntimeError:  # of some ops torch can tell nothing without the values: what they gave lies as it came
        return result
    strided = [
        x if spec is None or spec.strides is None or not isinstance(x, ShardedTensor) else with_strides(x, spec.strides)
        for x, spec in zip(values, specs, strict=True)
    ]
    return type(result)(strided) if isinstance(result, (tuple, list)) else strided[0]


def with_strides(x: ShardedTensor, strides: Strides) -> ShardedTensor:
    """A tensor that nobody else has, with these strides; it is itself where it has them."""
    same = not x.numel() or all(a == b or n == 1 for a, b, n in zip(x.stride(), strides, x.shape, strict=True))
    if same and (x._value.is_put_off or (is_unmade(x) and x.stride() == strides)):
        return x  # to look at its pieces would make them
    # Of few elements it is known how dims of size 1 lie, too.
    known = x.stride() == strides or not 1 < math.prod(hinted(x.shape)) <= FEW
    if same and known and memory_of(x._layout).lies_in(x, strides):
        return x
    pieces = tuple(in_order(piece, strides) for piece in x._value.pieces)
    return wrap(pieces, x._layout, x.shape, asked=x._asked, dtype=x.dtype, strides=strides)
