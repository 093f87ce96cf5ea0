"""Many processes: joining those that a launcher started, and leaving them.

>>> import weft
>>> weft.distributed.process_index(), weft.distributed.process_count()
(0, 1)
"""

from __future__ import annotations

from datetime import timedelta

from .devices import Device
from .runtime.machine import known_world, ownership
from .runtime.processes import world

__all__ = ["init", "is_initialized", "on_main", "process_count", "process_index", "process_of", "shutdown"]


def init(
    backend: str | None = None, timeout: float | timedelta | None = None, devices_per_process: int | None = None
) -> None:
    """Joins the processes that a launcher such as torchrun started; without a launcher, nothing changes.

    It is called for you, with the defaults, when the first mesh or tensor is made.

    >>> import weft
    >>> weft.distributed.init(timeout=60)

    Args:
        backend: "gloo" for CPU devices, "nccl" for GPUs, or both ("cpu:gloo,cuda:nccl"), which is the default where
            there are GPUs.
        timeout: how long to wait for another process before an error is raised; in seconds, or a timedelta.
        devices_per_process: how many devices each process owns, 1 by default.
    """
    world.join(backend, timeout, devices_per_process)


def shutdown() -> None:
    """Leaves the other processes; calling it twice, or never, is fine.

    >>> import weft
    >>> weft.distributed.shutdown()
    """
    world.leave()


def is_initialized() -> bool:
    """Whether this process has joined others.

    >>> import weft
    >>> weft.distributed.is_initialized()
    False
    """
    return world.joined() is not None


def process_index() -> int:
    """The index of this process, 0 when it is the only one.

    >>> import weft
    >>> weft.distributed.process_index()
    0
    """
    return world.asked().process


def process_count() -> int:
    """How many processes run this program together.

    >>> import weft
    >>> weft.distributed.process_count()
    1
    """
    return world.asked().count


def process_of(device: Device) -> int:
    """The index of the process that owns a device.

    >>> import weft
    >>> weft.distributed.process_of(weft.CPU(3))
    0
    """
    return ownership.process_of(device, known_world())


def on_main() -> bool:
    """Whether this is the first process: `if weft.on_main(): print(...)` prints once.

    >>> import weft
    >>> weft.on_main()
    True
    """
    return process_index() == 0
