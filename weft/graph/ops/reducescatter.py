# ruff: noqa: A001 - torch's own names
"""Reduce the inputs of all devices, and give each its piece: `reducescatter.sum`, `.mean`, `.max`, `.min`, `.prod`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol

import torch
from torch import fx

from ...sharding.dims import piece_size
from ..recording.emitter import Emitter
from ..recording.graph import Graph
from ..recording.op import Kind, Op
from ..recording.values import BufferValue, HasBufferValue, TensorLike, TensorValue
from .allreduce import checked_for
from .collectives import Buffers, Values, piece_of
from .inference import checked_axis
from .participants import checked_signals

__all__ = ["max", "mean", "min", "prod", "sum"]

_EXAMPLE = """The {word} of the inputs of all devices, cut along `axis`: each of these devices gets one piece.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> kinds = [TensorType("float32", [5, "n"], device) for device in signals.devices]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in {name}(graph.inputs[:2], graph.inputs[2:])]
    ['f32[3, n] on cpu:0', 'f32[2, n] on cpu:1']
    """


class ReduceScatterFunction(Protocol):
    """How a reduce-scatter is called."""

    def __call__(
        self, inputs: Iterable[TensorLike], signal_buffers: Iterable[BufferValue | HasBufferValue], axis: int = 0
    ) -> list[TensorValue]: ...


def _rule(how: str, emit: Emitter, inputs: Values, _signals: Buffers, axis: int) -> tuple[fx.Node, ...]:
    count, size = len(inputs), inputs[0].shape[axis]
    if all(emit.share(inputs[0].device, value.device) for value in inputs):
        # In one memory the pieces are views of one result.
        whole = emit.reduced(how, [emit.node(value) for value in inputs])
        return tuple(emit.view(torch.narrow, whole, axis, *piece_of(size, count, i)) for i in range(count))
    outputs = []
    for i, to in enumerate(inputs):
        pieces = [
            (emit.view(torch.narrow, emit.node(value), axis, *piece_of(size, count, i)), value.device)
            for value in inputs
        ]
        outputs.append(emit.reduced(how, [emit.moved(piece, device, to.device) for piece, device in pieces]))
    return tuple(outputs)


REDUCESCATTER = {
    name: Op(f"reducescatter_{name}", partial(_rule, name), Kind.COLLECTIVE)
    for name in ("sum", "mean", "max", "min", "prod")
}


def _reducescatter(name: str, word: str) -> ReduceScatterFunction:
    op = REDUCESCATTER[name]
    what = f"reducescatter.{name}"

    def function(
        inputs: Iterable[TensorLike], signal_buffers: Iterable[BufferValue | HasBufferValue], axis: int = 0
    ) -> list[TensorValue]:
        signals = checked_signals(signal_buffers, what)
        values = checked_for(name, what, inputs, signals)
        axis = checked_axis(axis, values[0].rank, what)
        if len(values) == 1:
            return values
        kinds = [
            value.type.resized(axis, piece_size(value.shape[axis], len(values), i)) for i, value in enumerate(values)
        ]
        return Graph.current().record(op, (tuple(values), tuple(signals), axis), kinds, many=True)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _EXAMPLE.format(word=word, name=name)
    return function


sum = _reducescatter("sum", "sum")
mean = _reducescatter("mean", "mean")
max = _reducescatter("max", "largest element")
min = _reducescatter("min", "smallest element")
prod = _reducescatter("prod", "product")
