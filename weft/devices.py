"""The devices a mesh is made of: values that name a place, and the list of those that this program has.

The module itself can be called: `weft.devices()` lists the devices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import ClassVar, NamedTuple, final

from .frozen import Frozen

__all__ = ["CPU", "Accelerator", "Device", "first_devices", "list_devices", "local_devices", "set_inventory"]


class Device(Frozen):
    """One place that can hold a shard: a `CPU` or an `Accelerator`.

    >>> isinstance(CPU(), Device), CPU(1) < CPU(2)
    (True, True)
    """

    __slots__ = ("__weakref__", "id")
    __match_args__ = ("id",)

    id: int
    label: ClassVar[str]
    is_host: ClassVar[bool]

    def __init__(self, id: int = 0) -> None:  # noqa: A002 - the name that the documents give it
        if type(self) is Device:
            raise TypeError("Device is abstract: use CPU(id) or Accelerator(id)")
        if isinstance(id, bool) or not isinstance(id, int):
            raise TypeError(f"a device id is a whole number, but got {id!r}: use {type(self).__name__}(0)")
        if id < 0:
            raise ValueError(f"a device id is 0 or more, but got {id}: use {type(self).__name__}(0)")
        self._set(id=id)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return (self.label, self.id) < (other.label, other.id)

    def __le__(self, other: object) -> bool:
        return self == other or self < other

    def __gt__(self, other: object) -> bool:
        if not isinstance(other, Device):
            return NotImplemented
        return other < self

    def __ge__(self, other: object) -> bool:
        return self == other or self > other

    def __str__(self) -> str:
        return f"{self.label}:{self.id}"


@final
class CPU(Device):
    """A host device. Several may share one machine's memory.

    >>> CPU(3), CPU(3).label, CPU(3).is_host
    (CPU(3), 'cpu', True)
    """

    __slots__ = ()
    label = "cpu"
    is_host = True


@final
class Accelerator(Device):
    """A GPU or another accelerator.

    >>> Accelerator(), Accelerator().label, Accelerator().is_host
    (Accelerator(0), 'gpu', False)
    """

    __slots__ = ()
    label = "gpu"
    is_host = False


class Inventory(NamedTuple):
    """The devices of all processes, those of this one, and whether more CPU devices can be made on demand."""

    all: tuple[Device, ...]
    local: tuple[Device, ...]
    can_grow: bool


def cpu_inventory(_joining: bool = False) -> Inventory:
    """As many CPU devices as `WEFT_CPU_DEVICES` says, 8 by default."""
    text = os.environ.get("WEFT_CPU_DEVICES", "8")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"WEFT_CPU_DEVICES is a whole number, 1 or more, but it is {text!r}")
    devices = tuple(CPU(i) for i in range(int(text)))
    return Inventory(devices, devices, can_grow=True)


_inventory: Callable[[bool], Inventory] = cpu_inventory


def set_inventory(inventory: Callable[[bool], Inventory]) -> None:
    """Lets a runtime, which knows accelerators and processes, say which devices there are; told whether to join others."""
    global _inventory  # noqa: PLW0603 - the one place that replaces it
    _inventory = inventory


def list_devices() -> tuple[Device, ...]:
    """All devices of this program, over all its processes.

    >>> list_devices()[:2]
    (CPU(0), CPU(1))
    """
    return _inventory(False).all


def local_devices() -> tuple[Device, ...]:
    """The devices of this process.

    >>> local_devices() == list_devices()
    True
    """
    return _inventory(False).local


def first_devices(count: int) -> Sequence[Device]:
    """The first `count` devices of this program, from which a mesh is made when none are named.

    >>> first_devices(2)
    (CPU(0), CPU(1))
    """
    inventory = _inventory(True)
    if count <= len(inventory.all):
        return inventory.all[:count]
    if inventory.can_grow:
        return tuple(CPU(i) for i in range(count))
    have = len(inventory.all)
    hint = "Name the devices (devices=[...]), or make the mesh smaller"
    if not inventory.all[0].is_host:
        hint = "Use devices=[Accelerator(0)] * count or WEFT_VIRTUAL_ACCELERATORS to try it on fewer, or devices=[CPU(i) ...]"
    raise ValueError(
        f"a mesh of {count} devices was asked for, but this program has {have}: {', '.join(map(repr, inventory.all))}. {hint}"
    )


class _CallableModule(ModuleType):
    def __call__(self) -> tuple[Device, ...]:
        # The door brings in the runtime with this name: without it, nobody knows of launches and accelerators.
        _ = sys.modules[__name__.partition(".")[0]].local_devices
        return list_devices()


sys.modules[__name__].__class__ = _CallableModule
