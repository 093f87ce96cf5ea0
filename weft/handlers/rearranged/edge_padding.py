"""Padding split dims with what stands at their ends, mirrored or repeated: only that moves, and the result stays split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from ...engine.execute import run_by_rule
from ...engine.handlers import handler
from ...engine.moves.rearranging import rearranged, resolved
from ...engine.sharded import ShardedTensor, sharded
from ...planning.rearrangement import Part, Run
from ...rules.call import BoundCall
from ...rules.factors import SUMS
from ...sharding.geometry import resized
from .padding import MOST_PARTS, sides_of

aten = torch.ops.aten

_MOST_LAYERS = 8


@dataclass(frozen=True, slots=True)
class _PaddedDim:
    """How one dim is padded."""

    size: int
    before: int
    after: int
    mirrors: bool

    @property
    def padded(self) -> int:
        """The size of the result."""
        return self.before + self.size + self.after

    def pads(self) -> list[tuple[int, int]]:
        """(place in the result, index that stands there), for all places of the padding."""
        last = self.size - 1
        ahead = [(k, self.before - k if self.mirrors else 0) for k in range(self.before)]
        behind = [(self.before + self.size + k, last - 1 - k if self.mirrors else last) for k in range(self.after)]
        return ahead + behind

    def layers(self) -> list[list[tuple[int, int]]]:
        """The padding in lists, in none of which an index stands twice."""
        found: list[dict[int, int]] = []
        for place, index in self.pads():
            layer = next((each for each in found if index not in each), None)
            if layer is None:
                layer = {}
                found.append(layer)
            layer[index] = place
        return [[(place, index) for index, place in layer.items()] for layer in found]


def _sides(call: BoundCall) -> list[_PaddedDim] | None:
    """How each dim is padded; None for what torch refuses, or cuts."""
    shape = call.tensor("self").shape
    pairs = sides_of(call.integers("padding"), len(shape))
    if len(pairs) != len(shape):
        return None
    mirrors = call.name.startswith("reflection")
    sides = [_PaddedDim(size, *pair, mirrors) for size, pair in zip(shape, pairs, strict=True)]
    usual = all(
        side.size > 0
        and min(side.before, side.after) >= 0
        and (not mirrors or max(side.before, side.after) < side.size)
        for side in sides
    )
    return sides if usual else None


def _is_split(x: torch.Tensor, padding: Sequence[int]) -> bool:
    """Whether one of the dims that an op pads, be it by nothing, is split."""
    return isinstance(x, ShardedTensor) and any(x._layout.splits[-(len(padding) // 2) :])


_KINDS = [f"{kind}_pad{count}d" for kind in ("reflection", "replication") for count in (1, 2, 3)]


@handler(*(getattr(aten, name).default for name in _KINDS), may_be_direct=True)
def _padded(call: BoundCall) -> object:
    x, padding, sides = sharded(call, "self"), call.integers("padding"), _sides(call)
    if sides is None or not _is_split(x, padding) or x.dtype is torch.bool:  # torch refuses the latter
        return run_by_rule(call)
    runs = [
        [Run(side.size, target=side.before), *(Run(1, source=index, target=place) for place, index in side.pads())]
        for side in sides
    ]
    parts = [Part(0, each) for each in product(*runs)]
    if len(parts) > MOST_PARTS:
        return run_by_rule(call)
    shape = [side.padded for side in sides]
    return rearranged([x], x._layout, shape, parts, str(call), lambda piece: call.func(piece, padding))


@handler(*(getattr(aten, f"{name}_backward").default for name in _KINDS), may_be_direct=True)
def _padded_backward(call: BoundCall) -> object:
    """What went to the padding is added to where it came from, dim by dim."""
    grad, padding, sides = call.tensor("grad_output"), call.integers("padding"), _sides(call)
    is_split = _is_split(grad, padding) or _is_split(call.tensor("self"), padding)
    if sides is None or not isinstance(grad, ShardedTensor) or not is_split:
        return run_by_rule(call)
    if any(len(side.layers()) > _MOST_LAYERS for side in sides):
        return run_by_rule(call)
    back = resolved(grad, str(call), SUMS)
    for dim, side in enumerate(sides):
        if side.padded > side.size:
            back = _folded(back, dim, side, str(call))
    return back


def _folded(grad: ShardedTensor, dim: int, side: _PaddedDim, op: str) -> ShardedTensor:
    shape = resized(grad.shape, dim, side.size)
    inner = Part.along(dim, Run(side.size, source=side.before), shape)
    result = rearranged(
        [grad], grad._layout, shape, [inner], op, lambda piece: piece.narrow(dim, side.before, side.size)
    )
    for layer in side.layers():
        parts = [Part.along(dim, Run(1, source=place, target=index), shape) for place, index in layer]
        placed = rearranged([grad], grad._layout, shape, parts, op, _placed(dim, side.size, layer), fill=0)
        result = aten.add.Tensor(result, placed)
    return result


def _placed(dim: int, size: int, layer: list[tuple[int, int]]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Some places of a dim at some indices of one that is zero elsewhere."""

    def placed(piece: torch.Tensor) -> torch.Tensor:
        places, indices = (torch.tensor(each, device=piece.device) for each in zip(*layer, strict=True))
        zeros = piece.new_zeros([size if d == dim else n for d, n in enumerate(piece.shape)])
        return zeros.index_copy(dim, indices, piece.index_select(dim, places))

    return placed
