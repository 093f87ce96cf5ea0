"""The same value elsewhere: transfers between devices, and weights cut for many devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ...sharding.dims import Dim, Shape
from ..recording.constraint import Constraint
from ..recording.device_ref import DeviceLike, DeviceRef
from ..recording.emitter import Emitter
from ..recording.graph import Graph
from ..recording.op import Kind, Op
from ..recording.types import TensorType
from ..recording.values import TensorLike, TensorValue, operation
from .inference import checked_axis, listed


def _transfer(emit: Emitter, x: TensorValue, device: DeviceRef) -> fx.Node:
    return emit.moved(emit.node(x), x.device, device)


def _shard_and_stack(
    emit: Emitter, inputs: tuple[TensorValue, ...], devices: tuple[DeviceRef, ...], axis: int
) -> tuple[fx.Node, ...]:
    length = inputs[0].shape[axis] // len(devices)
    outputs = []
    for i, device in enumerate(devices):
        chunks = [emit.view(torch.narrow, emit.node(value), axis, length * i, length) for value in inputs]
        outputs.append(emit.moved(emit.call(torch.stack, tuple(chunks)), inputs[0].device, device))
    return tuple(outputs)


TRANSFER = Op("transfer_to", _transfer, Kind.MOVEMENT)
SHARD_AND_STACK = Op("shard_and_stack", _shard_and_stack, Kind.MOVEMENT)


@operation
def transfer_to(x: TensorLike, device: DeviceLike) -> TensorValue:
    """Device-to-device transfer: the same value on another device.

    >>> from weft.graph import DeviceRef, Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch"])]) as graph:
    ...     transfer_to(graph.inputs[0], DeviceRef.CPU(1))
    TensorValue(transfer_to: f32[batch] on cpu:1)
    """
    graph, target = Graph.current(), DeviceRef.of(device)
    value = graph.tensor(x)
    if value.device == target:
        return value
    return graph.record(TRANSFER, (value, target), [value.type.on(target)])[0]


def shard_and_stack(inputs: Sequence[TensorLike], devices: Sequence[DeviceLike], axis: int = 0) -> list[TensorValue]:
    """Cut each input along `axis` into one chunk per device, and stack the chunks of each device along a new dim 0.

    >>> from weft.graph import DeviceRef, Graph, TensorType
    >>> devices = [DeviceRef.CPU(0), DeviceRef.CPU(1)]
    >>> with Graph("g", input_types=[TensorType("float32", [10, "d"])] * 2) as graph:
    ...     [str(value.type) for value in shard_and_stack(graph.inputs, devices)]
    ['f32[2, 5, d] on cpu:0', 'f32[2, 5, d] on cpu:1']
    """
    graph = Graph.current()
    if not inputs:
        raise ValueError("shard_and_stack needs at least one input, but got none")
    if not devices:
        raise ValueError("shard_and_stack needs at least one device, but got none")
    targets = tuple(DeviceRef.of(device) for device in devices)
    values = tuple(graph.tensor(value) for value in inputs)
    first = values[0]
    for value in values[1:]:
        if value.type != first.type:
            raise ValueError(
                f"shard_and_stack needs inputs of one shape, dtype and device, but got {listed(v.type for v in values)}"
            )
    axis = checked_axis(axis, first.rank, "shard_and_stack")
    size, count = first.shape[axis], len(targets)
    why = f"shard_and_stack cuts dim {axis} (size {size}) into {count} equal parts, one per device"
    graph.require(Constraint(size % count, "==", Dim(0), why))
    shape = Shape([len(values), *first.shape[:axis], size // count, *first.shape[axis + 1 :]])
    kinds = [TensorType(first.dtype, shape, device) for device in targets]
    return graph.record(SHARD_AND_STACK, (values, targets, axis), kinds, many=True)
