"""Where devices really are: torch devices, memories, and which slots of a mesh this process owns."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..caches import cached
from ..devices import CPU, Accelerator, Device, Inventory, cpu_inventory, set_inventory
from ..planning.topology.current import find_topology_by, on_topology_change
from ..sharding.mesh import DeviceMesh, Slot
from .processes import world
from .processes.launch_environment import is_launched
from .processes.liveness import heartbeat  # noqa: F401 - signs of life begin where processes join, so it has to be there

__all__ = ["Residence", "accelerator_count", "check_there", "device_of", "residence", "torch_device", "use_paper"]

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
    if ownership.on_paper:
        return torch.device("meta")
    if not isinstance(device, Accelerator):
        return torch.device("cpu")
    here = world.current()
    if here.count > 1:
        return _accelerator_of_process(device, here)
    count = accelerator_count()
    if device.id >= count:
        raise ValueError(f"{device!r} does not exist: this machine has {_offered(count)}")
    return torch.device("cuda", device.id % physical_accelerators())


def device_of(device: torch.device) -> Device:
    """The device that a torch device is.

    >>> device_of(torch.device("cpu"))
    CPU(0)
    """
    return CPU(device.index or 0) if device.type == "cpu" else Accelerator(device.index or 0)


def _accelerator_of_process(device: Device, here: world.World) -> torch.device:
    """An accelerator of this process, or one without a number for another's."""
    ownership.process_of(device)
    if not physical_accelerators():
        raise ValueError(f"{device!r} does not exist: this machine has {_offered(0)}")
    first, within = divmod(device.id, here.devices_per_process)
    if first != here.process:
        return torch.device("cuda", 0)
    return torch.device("cuda", (here.local_process * here.devices_per_process + within) % physical_accelerators())


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

    owned: tuple[Slot, ...]
    memories: tuple[Memory, ...]
    torch_devices: tuple[torch.device, ...]
    unified: bool
    owners: tuple[int, ...]
    """The process that owns each slot."""
    on_paper: bool = False
    """Whether the devices are only thought of: tensors have no values, and one device stands for all."""

    @property
    def device(self) -> torch.device:
        """The torch device that a tensor on this mesh reports."""
        if self.owned:
            return self.torch_devices[self.owned[0]]
        return self.torch_devices[0]


class _Ownership:
    """Which process owns a device. One process owns all, until a launcher's environment says otherwise."""

    separate_memory: bool = os.environ.get("WEFT_SEPARATE_MEMORY", "0") not in ("", "0")
    on_paper: bool = False
    """Whether all devices are only thought of."""
    thought_of: tuple[Device, ...] = ()
    """The devices that the program is to believe it has, on paper; none: those that there are."""

    def process_of(self, device: Device, here: world.World | None = None) -> int:
        here = here or world.current()
        process = here.process_of(device.id)
        if process >= here.count:
            kind = type(device).__name__
            last = here.count * here.devices_per_process - 1
            raise ValueError(
                f"{device!r} belongs to no process: this program has {here.count} processes with {here.devices_per_process} "
                f"devices each, {kind}(0) to {kind}({last}). Start more processes, or call "
                "weft.distributed.init(devices_per_process=...)"
            )
        return process


ownership = _Ownership()
_caches: list[Callable[[], None]] = []
"""What empties caches. Bound: the calls of `forget_with_residences`, one where a module is imported. Cleared: never."""


def forget_with_residences(clear: Callable[[], None]) -> None:
    """Registers a cache that is only right as long as devices stay where they are."""
    _caches.append(clear)


@cached(1024, cleared_by=forget_with_residences)
def residence(mesh: DeviceMesh) -> Residence:
    """Where a mesh lies, seen from this process.

    >>> from weft.sharding import make_mesh
    >>> residence(make_mesh({"dp": 2, "tp": 4})).unified
    True
    """
    here = world.current()
    if ownership.on_paper or _is_missing(mesh):
        return _on_paper(mesh)
    owners = tuple(ownership.process_of(device) for device in mesh.devices)
    owned = tuple(slot for slot, owner in enumerate(owners) if owner == here.process)
    memories: list[Memory] = []
    torch_devices: list[torch.device] = []
    for slot, (device, owner) in enumerate(zip(mesh.devices, owners, strict=True)):
        mine = owner == here.process
        where = torch_device(device) if mine else torch.device("cpu") if device.is_host else torch.device("cuda", 0)
        torch_devices.append(where)
        if ownership.separate_memory:
            memories.append((f"{device.label} slot of {owner}", slot if mesh.is_simulated else device.id))
        elif here.count == 1:
            memories.append((where.type, where.index or 0))
        else:  # said so that every process finds the same memories
            memories.append((f"{where.type} of {owner}", 0 if device.is_host else device.id))
    unified = here.count == 1 and len(set(memories)) == 1
    return Residence(owned, tuple(memories), tuple(torch_devices), unified, owners)


def _is_missing(mesh: DeviceMesh) -> bool:
    """Whether a mesh has accelerators that this program does not have; in several processes, who owns them says so."""
    if world.current().count > 1:
        return False
    ids = [device.id for device in mesh.devices if not device.is_host]
    return bool(ids) and max(ids) >= accelerator_count()


def _on_paper(mesh: DeviceMesh) -> Residence:
    """Where a mesh lies that is only thought of: the first device, which holds most of every tensor, stands for all."""
    count, here = mesh.num_devices, world.current().process
    memories = tuple(("paper", slot) for slot in range(count))
    return Residence((0,), memories, (torch.device("meta"),) * count, count == 1, (here,) * count, on_paper=True)


@cached(1024, cleared_by=forget_with_residences)
def check_there(mesh: DeviceMesh) -> None:
    """Refuses values on devices that this program does not have.

    >>> from weft.sharding import make_mesh
    >>> check_there(make_mesh({"dp": 2}, devices=[CPU(0), CPU(1)]))
    """
    if residence(mesh).on_paper and not ownership.on_paper:
        count = accelerator_count()
        missing = next(device for device in mesh.devices if not device.is_host and device.id >= count)
        raise ValueError(f"{missing!r} does not exist: this machine has {_offered(count)}")


def use_paper(on_paper: bool, devices: tuple[Device, ...] = ()) -> None:
    """Makes all devices ones that are only thought of (or stops that): those that there are, or others."""
    ownership.on_paper, ownership.thought_of = on_paper, devices
    reset()


def use_separate_memory(separate: bool) -> None:
    """Pretends (or stops pretending) that every device has a memory of its own, as several GPUs do."""
    ownership.separate_memory = separate
    reset()


def reset() -> None:
    """Forgets cached residences, after processes or devices changed."""
    for clear in _caches:
        clear()


def known_world() -> world.World:
    """The processes that devices belong to, as far as that is known before they have joined."""
    return world.asked() if is_launched() else world.current()


def _inventory(joining: bool) -> Inventory:
    if ownership.thought_of:
        return Inventory(ownership.thought_of, ownership.thought_of, can_grow=False)
    here = world.current() if joining else known_world()
    if here.count > 1:
        kind = Accelerator if here.accelerators else CPU
        each = here.devices_per_process
        every = tuple(kind(i) for i in range(here.count * each))
        return Inventory(every, every[here.process * each : (here.process + 1) * each], can_grow=False)
    count = accelerator_count()
    if not count:
        return cpu_inventory()
    devices = tuple(Accelerator(i) for i in range(count))
    return Inventory(devices, devices, can_grow=False)


set_inventory(_inventory)
_look_again = find_topology_by(lambda: (world.joined() or world.ALONE).topology)
world.on_change(lambda _: _look_again())
world.on_change(lambda _: reset())
on_topology_change(reset)
