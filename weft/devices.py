"""The devices a mesh is made of: values that name a place, and nothing else."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar, final

__all__ = ["CPU", "Accelerator", "Device"]


@dataclass(frozen=True, slots=True)
class Device(ABC):
    """One place that can hold a shard: a `CPU` or an `Accelerator`.

    >>> isinstance(CPU(), Device), CPU(1) < CPU(2)
    (True, True)
    """

    id: int = 0

    label: ClassVar[str]
    is_host: ClassVar[bool]

    def __post_init__(self) -> None:
        if type(self) is Device:
            raise TypeError("Device is abstract: use CPU(id) or Accelerator(id)")
        if isinstance(self.id, bool) or not isinstance(self.id, int):
            raise TypeError(f"a device id is a whole number, but got {self.id!r}: use {type(self).__name__}(0)")
        if self.id < 0:
            raise ValueError(f"a device id is 0 or more, but got {self.id}: use {type(self).__name__}(0)")

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"

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
