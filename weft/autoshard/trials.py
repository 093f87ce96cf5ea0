"""`Trials`: the ways of ops that are tried on paper, each kind of call once in each layout."""

from __future__ import annotations

from typing import final

import torch

from ..sharding.layout import Layout
from .prices import Prices
from .recording import RecordedOp
from .special_ops import SPECIAL
from .trial import Laid, Tried, thinking, tried
from .ways import Way

__all__ = ["Trials"]


@final
class Trials:
    """What was tried of a program."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: dict[object, Tried] = {}

    def of(self, op: RecordedOp, ways: list[Way]) -> list[Way]:
        """The ways of an op as they turn out, where it is one that is to be tried."""
        if op.call is None or op.factors is None:
            return ways
        with thinking():
            return [self._found(op, way) for way in ways]

    def _found(self, op: RecordedOp, way: Way) -> Way:
        if any(layout.pending for layout in way.inputs):
            return way  # what is pending stays so
        call, special = op.call, SPECIAL[op.func]
        assert call is not None
        assert special.tried is not None
        values = [self._prices.program.values[number] for number in op.inputs]
        given = tuple(
            Laid(
                Layout.replicated(layout.mesh, len(value.shape)) if value.kind == "constant" else layout,
                value.needs_grad,
            )
            for layout, value in zip(way.inputs, values, strict=True)
        )
        key = (op.func, given, tuple(value.dtype for value in values), _words(call.args), _words(call.kwargs))
        if key not in self._known:
            sizes = self._prices.sizes(op, way)
            self._known[key] = tried(call, special.tried, given, self._prices.machine, sizes)
        return way.found(self._known[key])


def _words(tree: object) -> object:
    """What arguments say beside tensors and sizes."""
    if isinstance(tree, torch.Tensor):
        return None
    if isinstance(tree, dict):
        return tuple((name, _words(each)) for name, each in tree.items())
    if isinstance(tree, (list, tuple)):
        return len(tree) if all(isinstance(each, int) for each in tree) else tuple(map(_words, tree))
    return tree
