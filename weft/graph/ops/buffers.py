"""Memory that changes: reading and writing buffers, in the order written."""

from __future__ import annotations

import torch
from torch import fx

from ...sharding.dims import Dim, Shape
from ..recording.emitter import Emitter
from ..recording.graph import Graph
from ..recording.op import Kernel, Kind, Op
from ..recording.values import BufferValue, HasBufferValue, Index, TensorLike, TensorValue, operation
from .indexing import cut, cut_step, select_step, spelled_out
from .inference import broadcast_shape

Step = tuple[Kernel, *tuple[object, ...]]
"""A view: its kernel and the arguments after the tensor."""


def _load(emit: Emitter, buffer: BufferValue) -> fx.Node:
    return emit.call(torch.clone, emit.node(buffer))


def _write(buffer: torch.Tensor, value: torch.Tensor) -> None:
    buffer.copy_(value)


def _store(emit: Emitter, buffer: BufferValue, value: TensorValue, steps: tuple[Step, ...]) -> fx.Node:
    target = emit.node(buffer)
    for kernel, *arguments in steps:
        target = emit.view(kernel, target, *arguments)
    return emit.call(_write, target, emit.node(value))


LOAD = Op("buffer_load", _load, Kind.BUFFER, pure=False)
STORE = Op("buffer_store", _store, Kind.BUFFER, pure=False)


@operation
def buffer_load(buffer: BufferValue | HasBufferValue) -> TensorValue:
    """What a buffer holds at this point of the program; later stores do not change it.

    >>> from weft.graph import BufferType, Graph
    >>> with Graph("g", input_types=[BufferType("float32", [4])]) as graph:
    ...     buffer_load(graph.inputs[0])
    TensorValue(buffer_load: f32[4] on cpu:0)
    """
    graph = Graph.current()
    source = checked_buffer(buffer)
    return graph.record(LOAD, (source,), [source.type.as_tensor()])[0]


@operation
def buffer_store(
    buffer: BufferValue | HasBufferValue, value: TensorLike, index: Index | tuple[Index, ...] = ...
) -> None:
    """Write a value to a buffer, or to the part of it that an index of numbers and slices names.

    >>> from weft.graph import BufferType, Graph
    >>> with Graph("g", input_types=[BufferType("float32", [4])]) as graph:
    ...     buffer_store(graph.inputs[0], 1.0, slice(0, 2))
    >>> print(graph)
    graph g(input0: f32[4] on cpu:0)
      constant = constant(1.0)          f32[] on cpu:0
      buffer_store(input0, constant, [[cut, 0, 0, 2, 1]])
    """
    graph = Graph.current()
    target = checked_buffer(buffer)
    source = graph.tensor(value, target.device)
    steps, shape = _steps(target, index if isinstance(index, tuple) else (index,))
    common = broadcast_shape([source.shape, shape], "buffer_store")
    if common != shape or source.dtype != target.dtype or source.device != target.device:
        raise ValueError(
            f"buffer_store: {source!r} does not fit into {target!r} at shape {shape}: cast, move or reshape it"
        )
    graph.record(STORE, (target, source, steps), [])


def checked_buffer(buffer: BufferValue | HasBufferValue) -> BufferValue:
    """The buffer that something stands for."""
    found = buffer.__buffervalue__() if isinstance(buffer, HasBufferValue) else buffer
    if not isinstance(found, BufferValue):
        raise TypeError(f"a buffer is a BufferValue, an input of type BufferType, but got {found!r}")
    Graph.current().own(found)
    return found


def _steps(buffer: BufferValue, index: tuple[Index, ...]) -> tuple[tuple[Step, ...], Shape]:
    """The index as one view after another, and the shape they lead to."""
    steps: list[Step] = []
    shape, axis = buffer.shape, 0
    for entry in spelled_out(index, buffer):
        if isinstance(entry, slice):
            bounds, shape = cut_step(shape, axis, entry, buffer.name)
            if bounds is not None:
                steps.append((cut, axis, *bounds))
            axis += 1
        elif isinstance(entry, (int, Dim)):
            position, shape = select_step(shape, axis, entry, buffer.name)
            steps.append((torch.select, axis, position))
        else:
            raise TypeError(f"a buffer is written at numbers and slices, but got {entry!r}")
    return tuple(steps), shape
