"""`DeviceRef`: where a symbolic value will lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ...devices import CPU, Accelerator, Device

__all__ = ["DeviceLike", "DeviceRef"]


@final
@dataclass(frozen=True, slots=True, repr=False)
class DeviceRef:
    """A device by name; nothing has to be there until the graph is compiled.

    >>> DeviceRef.CPU(), DeviceRef.GPU(1), DeviceRef.of(CPU(3))
    (DeviceRef.CPU(0), DeviceRef.GPU(1), DeviceRef.CPU(3))
    """

    device: Device

    def __post_init__(self) -> None:
        if not isinstance(self.device, Device):
            raise TypeError(
                f"a DeviceRef needs CPU(id) or Accelerator(id), but got {self.device!r}: use DeviceRef.CPU()"
            )

    @staticmethod
    def CPU(id: int = 0) -> DeviceRef:  # noqa: A002, N802 - the document's names
        """The host device with this id.

        >>> str(DeviceRef.CPU(2))
        'cpu:2'
        """
        return DeviceRef(CPU(id))

    @staticmethod
    def GPU(id: int = 0) -> DeviceRef:  # noqa: A002, N802 - the document's names
        """The accelerator with this id.

        >>> str(DeviceRef.GPU(2))
        'gpu:2'
        """
        return DeviceRef(Accelerator(id))

    @staticmethod
    def of(device: DeviceLike) -> DeviceRef:
        """The reference to a device, or the reference itself.

        >>> DeviceRef.of(Accelerator(1))
        DeviceRef.GPU(1)
        """
        if isinstance(device, DeviceRef):
            return device
        if isinstance(device, Device):
            return DeviceRef(device)
        raise TypeError(f"a device is a DeviceRef, CPU(id) or Accelerator(id), but got {device!r}: use DeviceRef.CPU()")

    @property
    def id(self) -> int:
        """Which of the devices of its kind.

        >>> DeviceRef.GPU(3).id
        3
        """
        return self.device.id

    def is_cpu(self) -> bool:
        """Whether this is a host device.

        >>> DeviceRef.CPU().is_cpu(), DeviceRef.GPU().is_cpu()
        (True, False)
        """
        return self.device.is_host

    def is_gpu(self) -> bool:
        """Whether this is an accelerator.

        >>> DeviceRef.GPU().is_gpu()
        True
        """
        return not self.device.is_host

    def to_device(self) -> Device:
        """The device itself.

        >>> DeviceRef.GPU(1).to_device()
        Accelerator(1)
        """
        return self.device

    def __repr__(self) -> str:
        return f"DeviceRef.{'CPU' if self.is_cpu() else 'GPU'}({self.id})"

    def __str__(self) -> str:
        return str(self.device)


DeviceLike = DeviceRef | Device
"""What stands for a device: a reference, `CPU(id)` or `Accelerator(id)`."""
