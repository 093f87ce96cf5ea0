"""`Tensor.unfold` along a split dim: devices exchange what their slices reach over the border, and the dim stays split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...caches import cached
from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.memory import memory_of
from ...engine.moves.rearranging import note_rearrangement, rearranged, resolved
from ...engine.sharded import ShardedTensor, sharded, wrap
from ...engine.views.view_results import viewed
from ...planning.boxes.windows import Reach, Windows, windows_of
from ...planning.rearrangement import Part, Rearrangement, Run, Side
from ...rules.call import BoundCall
from ...runtime.holding import holding
from ...runtime.traced import Size, settled
from ...sharding.layout import Layout
from ...sharding.placements import ReduceOp

aten = torch.ops.aten

_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})
_MOST_LAYERS = 8


@handler(aten.unfold.default, may_be_direct=True)
def _unfold(call: BoundCall) -> object:
    func, x = call.func, sharded(call, "self")
    dim, size, step = call.dim("dimension"), call.integer("size"), call.integer("step")
    if not x.dim() or not x._layout.splits[dim] or step < 1 or not 0 < size <= x.shape[dim]:
        return run_by_rule(call)
    layout = Layout(x._layout.mesh, (*x._layout.splits, ()), x._layout.pending)
    count = (x.shape[dim] - size) // step + 1
    results = tuple(count if d == dim else n for d, n in enumerate(x.shape))
    reach = {dim: Reach(*settled((size, step)))}
    windows = windows_of(Side.of(x._layout, _settled(x.shape, dim)), x._layout, reach, _settled(results, dim))

    def tell(base: ShardedTensor) -> None:
        note_rearrangement(windows.plan, base.dtype.itemsize, str(func))

    y = memory_of(layout).on_whole([x], layout, lambda piece: func(piece, dim, size, step), is_view=True)
    if y is not None:
        tell(x)
    else:
        pieces = tuple(
            func(piece, dim, size, step).contiguous() if piece.shape[dim] else piece.new_empty([*piece.shape, size])
            for piece in _cut(windows, x, dim, str(func))
        )
        y = wrap(pieces, layout, (*results, size), dtype=x.dtype)
    return viewed(call, y, is_moved=True, tell_read=tell)


def _settled(sizes: Sequence[int], dim: int) -> Size:
    """Sizes, settled along the dim that is read in slices; a compiler may leave the others open."""
    return tuple([int(size) if d == dim else size for d, size in enumerate(sizes)])


def _cut(windows: Windows, x: ShardedTensor, dim: int, op: str) -> list[torch.Tensor]:
    """What each device reads along a dim."""
    plan = windows.plan
    side_by_side = rearranged([x], windows.target, plan.target.shape, plan.parts, op, torch.clone)
    result = []
    for piece, coords in zip(side_by_side._value.pieces, holding(windows.target).coords, strict=True):
        result.append(piece.narrow(dim, 0, _width(windows, coords, dim)))
    return result


def _width(windows: Windows, coords: tuple[int, ...], dim: int) -> int:
    """How many indices of a dim a device reads."""
    window = windows.at(coords)[dim]
    assert window is not None
    return window[1] - window[0]


@handler(aten.unfold_backward.default, may_be_direct=True)
def _unfold_backward(call: BoundCall) -> object:
    """Each device adds up its slices; what reaches over its border goes to whose it is, and is added there."""
    func, grad, sizes = call.func, sharded(call, "grad_in"), call.integers("input_sizes")
    dim, size, step = call.dim("dim", len(sizes)), call.integer("size"), call.integer("step")
    if not sizes or not grad._layout.splits[dim] or grad._layout.splits[-1] or not grad.numel():
        return run_by_rule(call)
    layout = Layout(grad._layout.mesh, grad._layout.splits[:-1], grad._layout.pending)
    sums = _sums(layout, _settled(grad.shape[:-1], dim), _settled(sizes, dim), dim, Reach(*settled((size, step))))
    if len(sums.layers) > _MOST_LAYERS:
        return run_by_rule(call)
    kept = resolved(grad, str(func), _SUMS)
    if kept is not grad:
        return _unfold_backward(call.replaced(grad_in=kept))
    whole = memory_of(layout).on_whole([grad], layout, lambda x: func(x, sizes, dim, size, step), is_view=False)
    if whole is not None:
        for plan in sums.layers:
            note_rearrangement(plan, grad.dtype.itemsize, str(func))
        return whole
    added = []
    for piece, coords in zip(grad._value.pieces, holding(layout).coords, strict=True):
        width = _width(sums.windows, coords, dim)
        shape = [width if d == dim else n for d, n in enumerate(piece.shape[:-1])]
        part = func(piece.contiguous(), shape, dim, size, step) if piece.numel() else piece.new_zeros(shape)
        sides = [0, 0] * (len(sizes) - 1 - dim) + [0, sums.width - width]
        added.append(aten.constant_pad_nd.default(part, sides))
    result: torch.Tensor | None = None
    for plan in sums.layers:
        parts = wrap(tuple(added), layout, plan.sources[0].shape, dtype=grad.dtype)
        layer = rearranged([parts], layout, sizes, plan.parts, str(func), torch.clone, fill=0)
        result = layer if result is None else result + layer
    return result


@dataclass(frozen=True, slots=True)
class _SliceSums:
    """What the sums of devices over their own slices are: the indices of each, and how they come to where these lie."""

    windows: Windows
    width: int
    layers: tuple[Rearrangement, ...]
    """Exchanges in none of which two devices send to one index; their results are added."""


@cached(1024, of_sizes=True)
def _sums(layout: Layout, results: tuple[int, ...], sizes: tuple[int, ...], dim: int, reach: Reach) -> _SliceSums:
    windows = windows_of(Side.of(layout, sizes), layout, {dim: reach}, results)
    reads = windows.reads[dim]
    assert reads is not None
    width = max(stop - start for start, stop in reads)
    source = Side.of(layout, [width * len(reads) if d == dim else n for d, n in enumerate(sizes)])
    layers: list[list[Part]] = []
    ends: list[int] = []
    for number, (start, stop) in enumerate(reads):
        if start == stop:
            continue
        run = Run(stop - start, source=number * width, target=start)
        k = next((k for k, end in enumerate(ends) if end <= start), len(ends))
        if k == len(ends):
            layers.append([])
            ends.append(0)
        layers[k].append(Part.along(dim, run, sizes))
        ends[k] = stop
    target = Side.of(layout, sizes)
    return _SliceSums(windows, width, tuple(Rearrangement((source,), target, tuple(parts)) for parts in layers))
