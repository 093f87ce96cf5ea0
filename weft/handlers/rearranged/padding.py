"""Padding and repeating split dims: the result stays split."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged, resolved
from ...engine.sharded import sharded
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall
from ...rules.factors import SUMS
from ...sharding.placements import ReduceOp

__all__ = ["MOST_PARTS", "sides_of"]

aten = torch.ops.aten

MOST_PARTS = 256
_SAME_EVERYWHERE = frozenset({ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN})


def sides_of(pad: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """How each dim is padded, before and after: torch begins with the last, and those it does not name are not.

    >>> sides_of([1, 2, 3, 4], 3)
    [(0, 0), (3, 4), (1, 2)]
    """
    return [(0, 0)] * (rank - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]


@handler(aten.constant_pad_nd.default)
def _pad(call: BoundCall) -> object:
    pad, value = call.integers("pad"), call.scalar("value")
    # A padding that is the same in every contribution must still be itself when they are reduced.
    x = resolved(sharded(call, "self"), str(call), _SAME_EVERYWHERE if value else SUMS)
    sides = sides_of(pad, x.dim())
    shape = [size + before + after for size, (before, after) in zip(x.shape, sides, strict=True)]
    cut = [size + min(0, before) + min(0, after) for size, (before, after) in zip(x.shape, sides, strict=True)]
    if any(size < 0 for size in (*shape, *cut)) or not any(
        axes and any(side) for axes, side in zip(x._layout.splits, sides, strict=True)
    ):
        return run_by_rule(call.replaced(self=x))
    runs = tuple(_padded(size, *side) for size, side in zip(x.shape, sides, strict=True))
    return rearranged(
        [x],
        x._layout,
        shape,
        [Part(0, runs)],
        str(call),
        lambda piece: aten.constant_pad_nd.default(piece, pad, value),
        fill=value,
    )


def _padded(size: int, before: int, after: int) -> Run:
    """Where a dim lies in its padded form; negative paddings cut."""
    first, last = max(0, -before), size - max(0, -after)
    return Run(max(0, last - first), source=first, target=max(0, before))


@handler(aten.repeat.default)
def _repeat(call: BoundCall) -> object:
    x, repeats = sharded(call, "self"), call.integers("repeats")
    new = len(repeats) - x.dim()
    times = repeats[new:]
    crossed = [bool(axes) and n != 1 for axes, n in zip(x._layout.splits, times, strict=True)]
    parts = math.prod(n for n, split in zip(times, crossed, strict=True) if split)
    if not any(crossed) or not 0 < parts <= MOST_PARTS:
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
        str(call),
        lambda piece: aten.repeat.default(piece, across),
    )
    return y if within == [1] * x.dim() else aten.repeat.default(y, within)
