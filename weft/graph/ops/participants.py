"""Who takes part in a collective: the checks that all of them share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..recording.device_ref import DeviceRef
from ..recording.graph import Graph
from ..recording.signals import Signals, check_participants
from ..recording.values import BufferValue, HasBufferValue, TensorLike, TensorValue
from .inference import listed

__all__ = ["checked_inputs", "checked_signals", "same_shapes"]


def checked_signals(signal_buffers: Iterable[BufferValue | HasBufferValue], what: str) -> list[BufferValue]:
    """The signal buffers: one each on its own device, of the right dtype and size, of this graph."""
    graph = Graph.current()
    signals = []
    for i, given in enumerate(signal_buffers):
        buffer = given.__buffervalue__() if isinstance(given, HasBufferValue) else given
        if not isinstance(buffer, BufferValue):
            raise TypeError(
                f"{what}: signal buffer {i} is {buffer!r}, not a BufferValue: give Signals(devices).input_types() to the graph as inputs"
            )
        graph.own(buffer)
        size = buffer.shape[0] if buffer.rank == 1 else None
        if buffer.dtype != torch.uint8 or size is None or not size.is_static or int(size) < Signals.NUM_BYTES:
            raise ValueError(
                f"{what}: signal buffer {i} is {buffer.type}, but needs uint8 of rank 1 and {Signals.NUM_BYTES} bytes or more: "
                "use Signals(devices).input_types()"
            )
        signals.append(buffer)
    check_participants([buffer.device for buffer in signals], what)
    return signals


def checked_inputs(
    inputs: Iterable[TensorLike], signals: Sequence[BufferValue], what: str
) -> tuple[Graph, list[TensorValue]]:
    """The inputs of a collective: one per signal buffer, each on a device that has one, of one dtype and rank."""
    graph = Graph.current()
    if isinstance(inputs, TensorValue):
        raise TypeError(f"{what} takes one tensor per device, but got one value, {inputs!r}: use a list")
    values = [graph.tensor(value) for value in inputs]
    if not values:
        raise ValueError(f"{what} needs at least one input, but got none")
    if len(values) != len(signals):
        raise ValueError(
            f"{what} needs one signal buffer per input, but got {len(values)} inputs and {len(signals)} signal buffers"
        )
    check_participants([value.device for value in values], what)
    devices = [buffer.device for buffer in signals]
    for value in values:
        check_has_signal(value, devices, what)
    if len({value.dtype for value in values}) > 1:
        raise ValueError(f"{what} needs inputs of one dtype, but got {listed(v.type for v in values)}: cast them first")
    if len({value.rank for value in values}) > 1:
        raise ValueError(f"{what} needs inputs of one rank, but got {listed(v.type for v in values)}")
    return graph, values


def check_has_signal(value: TensorValue, devices: Sequence[DeviceRef], what: str) -> None:
    """Check that there is a signal buffer on a value's device."""
    if value.device not in devices:
        raise ValueError(
            f"{what}: {value.name} is on {value.device}, which has no signal buffer; they are on {listed(devices)}: "
            f"move it there, or add {value.device!r} to the Signals"
        )


def same_shapes(values: Sequence[TensorValue], what: str) -> None:
    """Check that all values have one shape."""
    for value in values[1:]:
        if value.shape != values[0].shape:
            raise ValueError(
                f"{what} needs inputs of one shape, but {values[0].name} is {values[0].type} and {value.name} is {value.type}"
            )
