"""Rolling and flipping split dims: each device receives what it does not hold of its part of the result."""

from __future__ import annotations

from itertools import product

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged
from ...engine.sharded import sharded
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall

aten = torch.ops.aten


@handler(aten.flip.default)
def _flip(call: BoundCall) -> object:
    x, dims = sharded(call, "self"), call.dims("dims")
    if not x.dim() or not any(x._layout.splits[dim] for dim in dims):
        return run_by_rule(call)
    whole = tuple(Run(size) for size in x.shape)
    return rearranged(
        [x], x._layout, x.shape, [Part(0, whole)], str(call), lambda piece: call.func(piece, dims), flips=dims
    )


@handler(aten.rot90.default)
def _rot90(call: BoundCall) -> object:
    """A turn by a quarter is a flip and an exchange of dims, by a half two flips."""
    x, turns = sharded(call, "self"), call.integer("k") % 4
    if not turns or len(call.integers("dims")) != 2 or x.dim() < 2:  # torch refuses the latter
        return run_by_rule(call)
    first, second = call.dims("dims")
    if first == second or not (x._layout.splits[first] or x._layout.splits[second]):
        return run_by_rule(call)
    if turns == 2:
        return aten.flip.default(x, [first, second])
    return aten.transpose.int(aten.flip.default(x, [second if turns == 1 else first]), first, second)


@handler(aten.roll.default)
def _roll(call: BoundCall) -> object:
    x, shifts = sharded(call, "self"), call.integers("shifts")
    if not x.numel():  # of nothing, torch does not look which dims these are
        return run_by_rule(call.replaced(dims=[0] * len(call.integers("dims"))))
    dims = call.dims("dims")
    if not dims and x._layout.split_axes:
        # Of what strides do not let stand in one line, a reshape would be a view of nothing.
        lined_up = x if x.is_contiguous() else aten.clone.default(x, memory_format=torch.contiguous_format)
        flat = aten.reshape.default(lined_up, [x.numel()])
        return aten.reshape.default(aten.roll.default(flat, shifts, [0]), list(x.shape))
    if len(dims) != len(shifts) or not any(x._layout.splits[dim] for dim in dims):
        return run_by_rule(call)
    total = [0] * x.dim()
    for dim, shift in zip(dims, shifts, strict=True):
        total[dim] = (total[dim] + shift) % x.shape[dim]
    runs = [_rolled(size, shift) for size, shift in zip(x.shape, total, strict=True)]
    parts = [Part(0, each) for each in product(*runs)]
    return rearranged([x], x._layout, x.shape, parts, str(call), lambda piece: call.func(piece, shifts, dims))


def _rolled(size: int, shift: int) -> list[Run]:
    if not shift:
        return [Run(size)]
    return [Run(size - shift, target=shift), Run(shift, source=size - shift)]
