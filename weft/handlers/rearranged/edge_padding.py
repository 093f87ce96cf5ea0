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
class _Stretch:
    """Places of the padding, one after another, and the indices that stand there, from the highest."""

    place: int
    index: int
    count: int

    def each(self) -> list[tuple[int, int]]:
        """(place in the result, index)."""
        return [(self.place + k, self.index - k) for k in range(self.count)]

    def places(self, device: torch.device) -> torch.Tensor:
        """The places in a tensor; they may be open, which a list of numbers cannot be."""
        return torch.arange(self.place, self.place + self.count, device=device)

    def indices(self, device: torch.device) -> torch.Tensor:
        """The indices, likewise."""
        return torch.arange(self.index, self.index - self.count, -1, device=device)


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

    def ahead(self) -> list[_Stretch]:
        """What stands before the dim."""
        if self.mirrors:
            return [_Stretch(0, self.before, self.before)] if self.before else []
        return [_Stretch(k, 0, 1) for k in range(self.before)]

    def behind(self) -> list[_Stretch]:
        """What stands after it."""
        end, last = self.before + self.size, self.size - 1
        if self.mirrors:
            return [_Stretch(end, last - 1, self.after)] if self.after else []
        return [_Stretch(end + k, last, 1) for k in range(self.after)]

    def layers(self) -> list[list[_Stretch]]:
        """The padding in lists, in none of which an index stands twice."""
        ahead, behind = self.ahead(), self.behind()
        pairs = [ahead[k : k + 1] + behind[k : k + 1] for k in range(max(len(ahead), len(behind)))]
        is_apart = self.before < self.size - 1 - self.after if self.mirrors else self.size > 1
        return pairs if is_apart else [[each] for pair in pairs for each in pair]


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
        [
            Run(side.size, target=side.before),
            *(Run(1, index, place) for pads in (*side.ahead(), *side.behind()) for place, index in pads.each()),
        ]
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
        parts = [Part.along(dim, Run(1, place, index), shape) for pads in layer for place, index in pads.each()]
        placed = rearranged([grad], grad._layout, shape, parts, op, _placed(dim, side.size, layer), fill=0)
        result = aten.add.Tensor(result, placed)
    return result


def _placed(dim: int, size: int, layer: list[_Stretch]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Some places of a dim at some indices of one that is zero elsewhere."""

    def placed(piece: torch.Tensor) -> torch.Tensor:
        places = torch.cat([pads.places(piece.device) for pads in layer])
        indices = torch.cat([pads.indices(piece.device) for pads in layer])
        zeros = piece.new_zeros([size if d == dim else n for d, n in enumerate(piece.shape)])
        return zeros.index_copy(dim, indices, piece.index_select(dim, places))

    return placed
