"""Padding split dims with what stands at their ends, mirrored or repeated: only that moves, and the result stays split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import cast

import torch

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
_MOST_LAYERS = 8
_SUMS = frozenset({ReduceOp.SUM, ReduceOp.AVG})


@dataclass(frozen=True, slots=True)
class _Side:
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


def _sides(func: Op, shape: Sequence[int], padding: object) -> list[_Side] | None:
    """How each dim is padded; None for what torch refuses, or cuts."""
    pad = [int(n) for n in cast("Sequence[int]", padding)]
    mirrors = "reflection" in str(func)
    pairs = [(0, 0)] * (len(shape) - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    if len(pairs) != len(shape):
        return None
    sides = [_Side(size, *pair, mirrors) for size, pair in zip(shape, pairs, strict=True)]
    usual = all(
        side.size > 0
        and min(side.before, side.after) >= 0
        and (not mirrors or max(side.before, side.after) < side.size)
        for side in sides
    )
    return sides if usual else None


def _is_split(x: torch.Tensor, padding: object) -> bool:
    """Whether one of the dims that an op pads, be it by nothing, is split."""
    return isinstance(x, ShardedTensor) and any(x._layout.splits[-(len(cast("Sequence[int]", padding)) // 2) :])


_KINDS = [f"{kind}_pad{count}d" for kind in ("reflection", "replication") for count in (1, 2, 3)]


@handler(*(getattr(aten, name).default for name in _KINDS), may_be_direct=True)
def _padded(call: BoundCall) -> object:
    func, args = call.func, call.args
    x = cast(ShardedTensor, args[0])
    sides = _sides(func, x.shape, args[1])
    if sides is None or not _is_split(x, args[1]) or x.dtype is torch.bool:  # torch refuses the latter
        return run_by_rule(call)
    runs = [
        [Run(side.size, target=side.before), *(Run(1, source=index, target=place) for place, index in side.pads())]
        for side in sides
    ]
    parts = [Part(0, each) for each in product(*runs)]
    if len(parts) > _MOST_PARTS:
        return run_by_rule(call)
    shape = [side.padded for side in sides]
    return rearranged([x], x._layout, shape, parts, str(func), lambda piece: func(piece, args[1]))


@handler(*(getattr(aten, f"{name}_backward").default for name in _KINDS), may_be_direct=True)
def _padded_backward(call: BoundCall) -> object:
    """What went to the padding is added to where it came from, dim by dim."""
    func, args = call.func, call.args
    grad, x = cast("tuple[torch.Tensor, torch.Tensor]", args[:2])
    sides = _sides(func, x.shape, args[2])
    if sides is None or not isinstance(grad, ShardedTensor) or not (_is_split(grad, args[2]) or _is_split(x, args[2])):
        return run_by_rule(call)
    if any(len(side.layers()) > _MOST_LAYERS for side in sides):
        return run_by_rule(call)
    back: torch.Tensor = resolved(grad, str(func), _SUMS)
    for dim, side in enumerate(sides):
        if side.padded > side.size:
            back = _folded(cast(ShardedTensor, back), dim, side, str(func))
    return back


def _folded(grad: ShardedTensor, dim: int, side: _Side, op: str) -> torch.Tensor:
    shape = [side.size if d == dim else size for d, size in enumerate(grad.shape)]

    def part(run: Run) -> Part:
        return Part(0, tuple(run if d == dim else Run(size) for d, size in enumerate(shape)))

    inner = part(Run(side.size, source=side.before))
    result: torch.Tensor = rearranged(
        [grad], grad._layout, shape, [inner], op, lambda piece: piece.narrow(dim, side.before, side.size)
    )
    for layer in side.layers():
        parts = [part(Run(1, source=place, target=index)) for place, index in layer]
        result = result + rearranged([grad], grad._layout, shape, parts, op, _placed(dim, side.size, layer), fill=0)
    return result


def _placed(dim: int, size: int, layer: list[tuple[int, int]]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Some places of a dim at some indices of one that is zero elsewhere."""

    def placed(piece: torch.Tensor) -> torch.Tensor:
        places, indices = (torch.tensor(each, device=piece.device) for each in zip(*layer, strict=True))
        zeros = piece.new_zeros([size if d == dim else n for d, n in enumerate(piece.shape)])
        return zeros.index_copy(dim, indices, piece.index_select(dim, places))

    return placed
