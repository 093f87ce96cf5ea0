# ruff: noqa: A001 - torch's own names
"""Reduce the inputs of all devices, and give the result to each: `allreduce.sum`, `.mean`, `.max`, `.min`, `.prod`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from torch import fx

from ..recording.emitter import Emitter
from ..recording.graph import Graph
from ..recording.op import Kind, Op
from ..recording.values import BufferValue, HasBufferValue, TensorLike, TensorValue
from .collectives import Buffers, Values, once_per_memory
from .participants import checked_inputs, checked_signals, same_shapes

__all__ = ["max", "mean", "min", "prod", "sum"]

AllReduceFunction: TypeAlias = Callable[
    [Iterable[TensorLike], Iterable[BufferValue | HasBufferValue]], list[TensorValue]
]

_EXAMPLE = """The {word} of the inputs of all devices, on each of these devices.

    >>> from weft.graph import DeviceRef, Graph, Signals, TensorType
    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> kinds = [TensorType("float32", ["n"], device) for device in signals.devices]
    >>> with Graph("g", input_types=[*kinds, *signals.input_types()]) as graph:
    ...     [str(value.type) for value in {name}(graph.inputs[:2], graph.inputs[2:])]
    ['f32[n] on cpu:0', 'f32[n] on cpu:1']
    """


def _rule(how: str, emit: Emitter, inputs: Values, _signals: Buffers) -> tuple[fx.Node, ...]:
    def reduced(to: TensorValue) -> fx.Node:
        return emit.reduced(how, [emit.moved(emit.node(value), value.device, to.device) for value in inputs])

    return once_per_memory(emit, inputs, reduced)


ALLREDUCE = {
    name: Op(f"allreduce_{name}", partial(_rule, name), Kind.COLLECTIVE)
    for name in ("sum", "mean", "max", "min", "prod")
}


def checked_for(name: str, what: str, inputs: Iterable[TensorLike], signals: list[BufferValue]) -> list[TensorValue]:
    """The inputs of a reduction: of one shape, and floats where a mean is asked for."""
    _, values = checked_inputs(inputs, signals, what)
    same_shapes(values, what)
    if name == "mean" and not (values[0].dtype.is_floating_point or values[0].dtype.is_complex):
        raise ValueError(f"{what} needs floats, but got {values[0].type}: cast them first")
    return values


def _allreduce(name: str, word: str) -> AllReduceFunction:
    op = ALLREDUCE[name]
    what = f"allreduce.{name}"

    def function(
        inputs: Iterable[TensorLike], signal_buffers: Iterable[BufferValue | HasBufferValue]
    ) -> list[TensorValue]:
        signals = checked_signals(signal_buffers, what)
        values = checked_for(name, what, inputs, signals)
        if len(values) == 1:
            return values
        kinds = [value.type for value in values]
        return Graph.current().record(op, (tuple(values), tuple(signals)), kinds, many=True)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _EXAMPLE.format(word=word, name=name)
    return function


sum = _allreduce("sum", "sum")
mean = _allreduce("mean", "mean")
max = _allreduce("max", "largest element")
min = _allreduce("min", "smallest element")
prod = _allreduce("prod", "product")
