"""Where devices really are: torch devices, memories, and which slots of a mesh this process owns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..devices import CPU, Accelerator, Device, Inventory, cpu_inventory, set_inventory
from ..sharding.mesh import DeviceMesh, Slot

__all__ = ["Residence", "accelerator_count", "residence", "torch_device"]

Memory = tuple[str, int]
"""What tells memories apart: a kind and a number. Slots with equal memories share storage."""


def _virtual_accelerators() -> int:
    text = os.environ.get("WEFT_VIRTUAL_ACCELERATORS", "0")
    if not text.isdecimal():
        raise ValueError(f"WEFT_VIRTUAL_ACCELERATORS is a whole number, but it is {text!r}")
    return int(text)


def physical_accelerators() -> int:
    """How many accelerators torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def accelerator_count() -> int:
    """How many accelerators this machine offers, virtual ones (`WEFT_VIRTUAL_ACCELERATORS`) included.

    >>> accelerator_count() >= 0
    True
    """
    physical = physical_accelerators()
    return max(physical, _virtual_accelerators()) if physical else 0


def torch_device(device: Device) -> torch.device:
    """The torch device that a Weft device of this process is.

    >>> torch_device(CPU(3))
    device(type='cpu')
    """
    if isinstance(device, Accelerator):
        count = accelerator_count()
        if device.id >= count:
            raise ValueError(f"{device!r} does not exist: this machine has {_offered(count)}")
        return torch.device("cuda", device.id % physical_accelerators())
    return torch.device("cpu")


def _offered(count: int) -> str:
    if count == 0:
        return "no accelerators. Use CPU devices, or run where torch.cuda.is_available() is true"
    names = "Accelerator(0)" if count == 1 else f"Accelerator(0) to Accelerator({count - 1})"
    return f"{names}. WEFT_VIRTUAL_ACCELERATORS offers more on the same hardware"


@dataclass(frozen=True, slots=True)
class Residence:
    """Where a mesh lies, seen from this process.

    `unified`: all slots are in one memory of this process, so a tensor is stored whole.
    """

    mesh: DeviceMesh
    owned: tuple[Slot, ...]
    memories: tuple[Memory, ...]
    torch_devices: tuple[torch.device, ...]
    unified: bool

    @property
    def device(self) -> torch.device:
        """The torch device that a tensor on this mesh reports."""
        if self.owned:
            return self.torch_devices[self.owned[0]]
        return self.torch_devices[0]


class _Ownership:
    """Which process owns a device. One process owns all, until a launcher's environment says otherwise."""

    process: int = 0
    process_count: int = 1
    devices_per_process: int = 1
    separate_memory: bool = os.environ.get("WEFT_SEPARATE_MEMORY", "0") not in ("", "0")

    def process_of(self, device: Device) -> int:
        return 0 if self.process_count == 1 else device.id // self.devices_per_process


ownership = _Ownership()


@lru_cache(maxsize=1024)
def residence(mesh: DeviceMesh) -> Residence:
    """Where a mesh lies, seen from this process.

    >>> from weft.sharding import make_mesh
    >>> residence(make_mesh({"dp": 2, "tp": 4})).unified
    True
    """
    process = ownership.process
    owners = [ownership.process_of(device) for device in mesh.devices]
    owned = tuple(slot for slot, owner in enumerate(owners) if owner == process)
    memories: list[Memory] = []
    torch_devices: list[torch.device] = []
    for slot, (device, owner) in enumerate(zip(mesh.devices, owners, strict=True)):
        where = torch_device(device) if owner == process else torch.device("cpu" if device.is_host else "cuda")
        torch_devices.append(where)
        if ownership.separate_memory:
            memories.append((f"slot of {owner}", slot if mesh.is_simulated else device.id))
        else:
            memories.append((f"{where.type} of {owner}", where.index or 0))
    unified = len(owned) == mesh.num_devices and len(set(memories)) == 1
    return Residence(mesh, owned, tuple(memories), tuple(torch_devices), unified)


_caches: list[Callable[[], None]] = [residence.cache_clear]


def forget_with_residences(clear: Callable[[], None]) -> None:
    """Registers a cache that is only right as long as devices stay where they are."""
    _caches.append(clear)


def use_separate_memory(separate: bool) -> None:
    """Pretends (or stops pretending) that every device has a memory of its own, as several GPUs do."""
    ownership.separate_memory = separate
    reset()


def reset() -> None:
    """Forgets cached residences, after processes or devices changed."""
    for clear in _caches:
        clear()


def _inventory() -> Inventory:
    if ownership.process_count > 1:
        raise RuntimeError("the devices of several processes are listed by weft.distributed")
    count = accelerator_count()
    if not count:
        return cpu_inventory()
    devices = tuple(Accelerator(i) for i in range(count))
    return Inventory(devices, devices, can_grow=False)


set_inventory(_inventory)
default_device = CPU(0)
