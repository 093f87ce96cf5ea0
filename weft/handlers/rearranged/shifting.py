"""Rolling and flipping split dims: each device receives what it does not hold of its part of the result."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import cast

import torch

from ...engine.arguments import argument, as_dims
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged
from ...engine.sharded import ShardedTensor
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]


@handler(aten.flip.default)
def _flip(call: BoundCall) -> object:
    func, args = call.func, call.args
    x = cast(ShardedTensor, args[0])
    dims = as_dims(args[1], x.dim())
    if not x.dim() or not any(x._layout.splits[dim] for dim in dims):
        return run_by_rule(call)
    whole = tuple(Run(size) for size in x.shape)
    return rearranged(
        [x],
        x._layout,
        x.shape,
        [Part(0, whole)],
        str(func),
        lambda piece: aten.flip.default(piece, dims),
        flips=dims,
    )


@handler(aten.rot90.default)
def _rot90(call: BoundCall) -> object:
    """A turn by a quarter is a flip and an exchange of dims, by a half two flips."""
    func, args, kwargs = call.func, call.args, call.kwargs
    x, turns = cast(ShardedTensor, args[0]), cast(int, argument(func, args, kwargs, "k")) % 4
    named = cast("Sequence[int]", argument(func, args, kwargs, "dims"))
    if not turns or len(named) != 2 or x.dim() < 2:  # torch refuses the latter
        return run_by_rule(call)
    first, second = as_dims(named, x.dim())
    if first == second or not (x._layout.splits[first] or x._layout.splits[second]):
        return run_by_rule(call)
    if turns == 2:
        return aten.flip.default(x, [first, second])
    return aten.transpose.int(aten.flip.default(x, [second if turns == 1 else first]), first, second)


@handler(aten.roll.default)
def _roll(call: BoundCall) -> object:
    func, args, kwargs = call.func, call.args, call.kwargs
    x = cast(ShardedTensor, args[0])
    shifts = [int(s) for s in cast("Sequence[int]", args[1] if isinstance(args[1], (list, tuple)) else [args[1]])]
    named = args[2] if len(args) > 2 else kwargs.get("dims", ())
    if not named and x._layout.split_axes and x.numel():
        flat = aten.reshape.default(x, [x.numel()])
        return aten.reshape.default(aten.roll.default(flat, shifts, [0]), list(x.shape))
    dims = as_dims(list(cast("Sequence[int]", named or ())), x.dim())
    if not x.numel() or len(dims) != len(shifts) or not any(x._layout.splits[dim] for dim in dims):
        return run_by_rule(call)
    total = [0] * x.dim()
    for dim, shift in zip(dims, shifts, strict=True):
        total[dim] = (total[dim] + shift) % x.shape[dim]
    runs = [_rolled(size, shift) for size, shift in zip(x.shape, total, strict=True)]
    return rearranged(
        [x],
        x._layout,
        x.shape,
        [Part(0, each) for each in product(*runs)],
        str(func),
        lambda piece: aten.roll.default(piece, shifts, dims),
    )


def _rolled(size: int, shift: int) -> list[Run]:
    if not shift:
        return [Run(size)]
    return [Run(size - shift, target=shift), Run(shift, source=size - shift)]
