"""`Trials`: the ways of ops that are tried on paper, each kind of call once in each layout."""

from __future__ import annotations

from typing import final

import torch

from ..errors import PaperError
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from .layouts import candidate_layouts
from .prices import Prices
from .program import RecordedOp, RecordedValue
from .special_ops import called_by
from .trial import Laid, Tried, thinking, tried
from .ways import OpWay

__all__ = ["Trials"]


@final
class Trials:
    """What was tried of a program."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: dict[object, Tried] = {}

    def of(self, op: RecordedOp, ways: list[OpWay]) -> list[OpWay]:
        """The ways of an op as they turn out, where it is one that is to be tried."""
        if op.call is None:
            return ways
        values = [self._prices.program.values[number] for number in op.inputs]
        with thinking():
            if op.factors is not None:
                return [self._found(op, values, way) for way in ways]
            try:
                return [*ways, *(self._found(op, values, way) for way in _said_by_none(values, ways[0]))]
            except PaperError:  # it reads values, and is left to replicas
                return ways

    def _found(self, op: RecordedOp, values: list[RecordedValue], way: OpWay) -> OpWay:
        if any(layout.pending for layout in way.inputs):
            return way  # what is pending stays so
        call, run = op.call, called_by(op.func)
        assert call is not None
        assert run is not None
        given = tuple(
            Laid(_whole(layout.mesh, value) if value.kind == "constant" else layout, value.needs_grad)
            for layout, value in zip(way.inputs, values, strict=True)
        )
        shapes = () if op.factors is not None else tuple(value.shape for value in values)
        key = (op.func, given, shapes, tuple(value.dtype for value in values), _words(call.args), _words(call.kwargs))
        if key not in self._known:
            sizes = self._prices.sizes(op, way)
            self._known[key] = tried(call, run, given, self._prices.machine, sizes)
        return way.found(self._known[key])


def _said_by_none(values: list[RecordedValue], replicated: OpWay) -> list[OpWay]:
    """Ways to split an op of which no rule says what may be split: its first tensor, and others of that shape with it."""
    mesh = replicated.inputs[0].mesh
    return [
        OpWay(inputs, replicated.outputs, inputs, 1)
        for layout in candidate_layouts(mesh, values[0].shape)
        if not layout.is_replicated
        for inputs in [tuple(layout if each.shape == values[0].shape else _whole(mesh, each) for each in values)]
    ]


def _whole(mesh: DeviceMesh, value: RecordedValue) -> Layout:
    return Layout.replicated(mesh, len(value.shape))


def _words(tree: object) -> object:
    """What arguments say beside tensors and sizes."""
    if isinstance(tree, torch.Tensor):
        return None
    if isinstance(tree, dict):
        return tuple((name, _words(each)) for name, each in tree.items())
    if isinstance(tree, (list, tuple)):
        return len(tree) if all(isinstance(each, int) for each in tree) else tuple(map(_words, tree))
    return tree
