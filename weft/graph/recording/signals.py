"""`Signals`: the buffers with which devices tell each other that data is ready."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, final

import torch

from ...runtime.machine import torch_device
from .device_ref import DeviceLike, DeviceRef
from .types import BufferType

__all__ = ["MAX_ACCELERATORS", "Signals", "check_participants"]

MAX_ACCELERATORS = 8
"""The most accelerators that one collective serves."""


@final
class Signals:
    """One synchronisation buffer per device, for the collectives of a graph.

    >>> signals = Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])
    >>> signals.input_types()[1]
    BufferType(torch.uint8, Shape([32768]), DeviceRef.CPU(1))
    >>> [buffer.shape for buffer in signals.buffers()]
    [torch.Size([32768]), torch.Size([32768])]
    """

    NUM_BYTES: ClassVar[int] = 32768
    """The size of one buffer: what the GPU kernels of `weft.kernels` need for their counters."""

    __slots__ = ("devices",)

    devices: tuple[DeviceRef, ...]

    def __init__(self, devices: Iterable[DeviceLike]) -> None:
        self.devices = tuple(DeviceRef.of(device) for device in devices)
        if not self.devices:
            raise ValueError(
                "Signals needs at least one device, but got none: use Signals([DeviceRef.CPU(0), DeviceRef.CPU(1)])"
            )
        check_participants(self.devices, "Signals")

    def input_types(self) -> list[BufferType]:
        """The types of the buffers, to be given to the graph as inputs.

        >>> len(Signals([DeviceRef.CPU(i) for i in range(4)]).input_types())
        4
        """
        return [BufferType(torch.uint8, [self.NUM_BYTES], device) for device in self.devices]

    def buffers(self) -> list[torch.Tensor]:
        """New buffers, all zero, to be given to the model at each run; they can be used again at once.

        >>> int(Signals([DeviceRef.CPU()]).buffers()[0].sum())
        0
        """
        return [
            torch.zeros(self.NUM_BYTES, dtype=torch.uint8, device=torch_device(ref.to_device())) for ref in self.devices
        ]

    def __repr__(self) -> str:
        return f"Signals({list(self.devices)!r})"


def check_participants(devices: Iterable[DeviceRef], what: str) -> None:
    """Check that devices can take part in one collective: each once, and at most 8 accelerators.

    >>> check_participants([DeviceRef.GPU(i) for i in range(9)], "allgather")
    Traceback (most recent call last):
    ValueError: allgather serves at most 8 accelerators, but got 9: use fewer, or several collectives
    """
    devices = list(devices)
    repeated = sorted({str(device) for device in devices if devices.count(device) > 1})
    if repeated:
        raise ValueError(
            f"{what} needs each device once, but {', '.join(repeated)} is there more than once in {_named(devices)}"
        )
    accelerators = sum(device.is_gpu() for device in devices)
    if accelerators > MAX_ACCELERATORS:
        raise ValueError(
            f"{what} serves at most {MAX_ACCELERATORS} accelerators, but got {accelerators}: use fewer, or several collectives"
        )


def _named(devices: Iterable[DeviceRef]) -> str:
    return ", ".join(map(str, devices))
