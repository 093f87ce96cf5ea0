"""Padding and repeating split dims: the result stays split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import cast

import torch

from ...engine.arguments import argument
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged, resolved
from ...engine.sharded import ShardedTensor
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall
from ...sharding.placements import ReduceOp

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]

_MOST_PARTS = 256
_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})
_SAME_EVERYWHERE = frozenset({ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN})


@handler(aten.constant_pad_nd.default)
def _pad(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    pad = [int(p) for p in cast("Sequence[int]", args[1])]
    value = cast(float, argument(func, args, kwargs, "value"))
    # A padding that is the same in every contribution must still be itself when they are reduced.
    x = resolved(x, str(func), _SAME_EVERYWHERE if value else _SUMS)
    sides = [(0, 0)] * (x.dim() - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    shape = [size + before + after for size, (before, after) in zip(x.shape, sides, strict=True)]
    cut = [size + min(0, before) + min(0, after) for size, (before, after) in zip(x.shape, sides, strict=True)]
    if min((*shape, *cut), default=0) < 0 or not any(
        axes and any(side) for axes, side in zip(x._layout.splits, sides, strict=True)
    ):
        return run_by_rule(call.replaced(self=x))
    runs = tuple(_padded(size, *side) for size, side in zip(x.shape, sides, strict=True))
    return rearranged(
        [x],
        x._layout,
        shape,
        [Part(0, runs)],
        str(func),
        lambda piece: aten.constant_pad_nd.default(piece, pad, value),
        fill=value,
    )


def _padded(size: int, before: int, after: int) -> Run:
    """Where a dim lies in its padded form; negative paddings cut."""
    first, last = max(0, -before), size - max(0, -after)
    return Run(max(0, last - first), source=first, target=max(0, before))


@handler(aten.repeat.default)
def _repeat(call: BoundCall) -> object:
    func, args = call.func, call.args
    x = cast(ShardedTensor, args[0])
    repeats = [int(n) for n in cast("Sequence[int]", args[1])]
    new = len(repeats) - x.dim()
    times = repeats[new:]
    crossed = [bool(axes) and n != 1 for axes, n in zip(x._layout.splits, times, strict=True)]
    parts = math.prod(n for n, split in zip(times, crossed, strict=True) if split)
    if not any(crossed) or not 0 < parts <= _MOST_PARTS:
        return run_by_rule(call)
    across = [n if split else 1 for n, split in zip(times, crossed, strict=True)]
    within = [*repeats[:new], *(1 if split else n for n, split in zip(times, crossed, strict=True))]
    shape = [size * n for size, n in zip(x.shape, across, strict=True)]
    runs = [[Run(size, target=k * size) for k in range(n)] for size, n in zip(x.shape, across, strict=True)]
    y = rearranged(
        [x],
        x._layout,
        shape,
        [Part(0, each) for each in product(*runs)],
        str(func),
        lambda piece: aten.repeat.default(piece, across),
    )
    return y if within == [1] * x.dim() else aten.repeat.default(y, within)
