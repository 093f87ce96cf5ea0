"""`World`: the processes of this program, and how this one joins and leaves them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from ...devices import CPU
from ...errors import WeftError
from ...planning import Topology
from . import fork
from .hosts import shared_topology
from .launch_environment import devices_per_process as devices_of_each
from .launch_environment import has_place, is_launched, note_joined, number
from .random_state import share_random_state

__all__ = ["DEFAULT_TIMEOUT", "World", "asked", "current", "forget_on_change", "join", "leave", "on_change", "on_leave"]

DEFAULT_TIMEOUT = timedelta(minutes=10)


@final
@dataclass(frozen=True, slots=True)
class World:
    """The processes of this program, seen from one of them.

    >>> World().process, World().count
    (0, 1)
    """

    process: int = 0
    count: int = 1
    devices_per_process: int = 1
    local_process: int = 0
    """The index of this process among those of its host."""
    backends: tuple[tuple[str, str], ...] = ()
    """Which backend carries the tensors of which kind of torch device."""
    timeout: timedelta = DEFAULT_TIMEOUT
    made_here: bool = False
    """Whether Weft initialised torch.distributed, and so ends it."""
    number: int = 0
    """How often this process had joined before, which is the same in all."""
    topology: Topology | None = None
    """How far apart their devices are, which is the same in all."""

    def backend(self, device_type: str) -> str | None:
        """The backend for tensors on this kind of torch device, if any."""
        return dict(self.backends).get(device_type)

    def is_near(self, process: int) -> bool:
        """Whether a process is on the host of this one, as far as is known.

        >>> World(process=1, count=4, topology=Topology(devices_per_host=2)).is_near(2)
        False
        """
        if self.topology is None:
            return True
        here, there = (CPU(each * self.devices_per_process) for each in (self.process, process))
        return self.topology.host_of(here) == self.topology.host_of(there)

    @property
    def accelerators(self) -> bool:
        """Whether the devices of this program are accelerators."""
        return self.backend("cuda") == "nccl"

    @property
    def is_fake(self) -> bool:
        """Whether the others are only said to be there, as torch's fake process group does."""
        return ("cpu", "fake") in self.backends

    def process_of(self, device_id: int) -> int:
        """The process that owns a device."""
        return 0 if self.count == 1 else device_id // self.devices_per_process


@final
@dataclass(frozen=True, slots=True)
class Leaving:
    """How a process leaves the others."""

    error: str | None
    """The error that ends its program, if one does and is news to the others."""
    failed: bool
    """Whether any error ends its program."""
    keeps_store: bool
    """Whether the others' store is in this process."""


ALONE = World()
_joins = count()
_world: World | None = None
_left: World | None = None
"""The world that this process left last."""
_listeners: list[Callable[[World], None]] = []
"""Bound: the calls of `on_change`, one where a module is imported. Cleared: never."""
_before_leaving: list[Callable[[Leaving], None]] = []
"""Bound: the calls of `on_leave`, one where a module is imported. Cleared: never."""


def on_change(listener: Callable[[World], None]) -> None:
    """Registers what has to happen when this process joins or leaves the others."""
    _listeners.append(listener)


def forget_on_change(clear: Callable[[], None]) -> None:
    """Registers a cache that is only right as long as the same processes work together."""
    on_change(lambda _: clear())


def on_leave(tell: Callable[[Leaving], None]) -> None:
    """Registers what has to happen before this process leaves the others."""
    _before_leaving.append(tell)


def current() -> World:
    """The world of this process; under a launcher, the first call joins it, and after leaving as it was joined before."""
    if _world is not None:
        return _world
    if dist.is_available() and (dist.is_initialized() or is_launched()):
        if _left is None:
            return join()
        backends = ",".join(f"{kind}:{name}" for kind, name in _left.backends)
        return join(backends, _left.timeout, _left.devices_per_process)
    return ALONE


def asked() -> World:
    """The world as torch.distributed or a launcher's environment know it: nobody joins, or waits for others.

    A process that one of a launch has started is told where that one stands, though it is none of them itself.
    """
    if _world is not None:
        return _world
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), devices_of_each(None), _local_process(), _served())
    if dist.is_available() and has_place():
        served = tuple(sorted(_parsed(_chosen(None)).items()))
        return World(number("RANK"), number("WORLD_SIZE"), devices_of_each(None), _local_process(), served)
    return ALONE


def join(
    backend: str | None = None, timeout: float | timedelta | None = None, devices_per_process: int | None = None
) -> World:
    """Joins the processes that a launcher started, or those of a torch.distributed that is initialised already."""
    span = _timeout(timeout)
    each = devices_of_each(devices_per_process)
    if _world is not None:
        return _rejoined(_world, backend, timeout, devices_per_process)
    made_here = False
    if not dist.is_initialized():
        if not is_launched():
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(_local_process() * each % torch.cuda.device_count())
        _init(_chosen(backend), span)
        made_here = True
    if dist.get_world_size() == 1:
        return ALONE
    here = World(
        dist.get_rank(), dist.get_world_size(), each, _local_process(), _served(), span, made_here, next(_joins)
    )
    if not here.is_fake:
        share_random_state(_store_of(here.number), here.process, span)
        store, carrier = _store_of(here.number), "nccl" if here.accelerators else "gloo"
        here = replace(here, topology=shared_topology(store, here.process, here.count, each, carrier))
    return _entered(here)


def _init(backend: str, span: timedelta) -> None:
    """Joins torch's processes. What those that were restarted have left in the launcher's store is not taken for new."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0":
        dist.init_process_group(backend, timeout=span)
        return
    store, process, processes = next(rendezvous("env://", timeout=span))
    kept = PrefixStore(f"restart {restarts}", store)
    dist.init_process_group(backend, store=kept, rank=process, world_size=processes, timeout=span)


def leave() -> None:
    """Leaves the other processes; leaving twice, or without having joined, does nothing."""
    global _world, _left
    world = _world
    if world is None or fork.is_child():
        return
    error = getattr(sys, "last_value", None)
    # An error about another process is no news to the others.
    said = None if error is None or isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
    # torchrun keeps the store in a process of its own; else the first process has it.
    keeps = world.process == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    for tell in reversed(_before_leaving):  # what was built last leaves first
        tell(Leaving(said, error is not None, keeps))
    _world, _left = None, world
    for listener in _listeners:
        listener(ALONE)
    if world.made_here and dist.is_initialized():
        dist.destroy_process_group()


def store() -> Store:
    """Where the processes of this program leave each other notes."""
    return _store_of(current().number)


def _store_of(number: int) -> Store:
    """The notes of one joining: torch's store may outlive it, and old notes would be taken for new ones."""
    found = distributed_c10d._get_default_store()
    assert found is not None
    return PrefixStore(f"weft/{number}", found)


def joined() -> World | None:
    """The world that was joined, if one was; unlike `current`, joins none."""
    return _world


def _entered(world: World) -> World:
    global _world  # noqa: PLW0603 - one world a process
    _world = world
    note_joined(os.getpid())
    atexit.register(leave)
    for listener in _listeners:
        listener(world)
    return world


def _rejoined(world: World, backend: str | None, timeout: object, devices_per_process: int | None) -> World:
    """The world that was joined already, if what is asked for now is the same."""
    serves = {kind: name for kind, name in world.backends if backend is None or kind in _parsed(backend)}
    asked: Mapping[str, tuple[object, object]] = {
        "backend": (backend and _parsed(backend), serves),
        "timeout": (timeout and _timeout(timeout), world.timeout),
        "devices_per_process": (devices_per_process, world.devices_per_process),
    }
    for name, (wanted, has) in asked.items():
        if wanted is not None and wanted != has:
            raise ValueError(
                f"weft.distributed is initialised already, with {name}={has!r}, and cannot change to {wanted!r}: "
                "call weft.distributed.init before the first mesh or tensor, or weft.distributed.shutdown first"
            )
    return world


def _chosen(backend: str | None) -> str:
    if backend is not None:
        return backend
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def _parsed(backend: str) -> dict[str, str]:
    """Which backend serves which kind of device.

    >>> _parsed("cpu:gloo,cuda:nccl"), _parsed("gloo"), _parsed("nccl")
    ({'cpu': 'gloo', 'cuda': 'nccl'}, {'cpu': 'gloo'}, {'cuda': 'nccl'})
    """
    if ":" in backend:
        return dict(tuple(part.split(":", 1)) for part in backend.lower().split(","))  # type: ignore[misc]
    return {"cuda" if backend.lower() == "nccl" else "cpu": backend.lower()}


def _served() -> tuple[tuple[str, str], ...]:
    """What the backend of torch's default group serves."""
    return tuple(sorted(_parsed(dist.get_backend_config(dist.group.WORLD)).items()))


def _local_process() -> int:
    return number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else dist.get_rank() if dist.is_initialized() else 0


def _timeout(timeout: object) -> timedelta:
    if timeout is None:
        return DEFAULT_TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, timedelta)):
        raise TypeError(f"timeout is in seconds or a timedelta, but got {timeout!r}")
    span = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if span <= timedelta(0):
        raise ValueError(f"timeout is more than 0 seconds, but got {timeout!r}")
    return span


def _forked() -> None:
    """A child keeps what is known of the world: its tensors are pieces of that one. Torch's groups stay to the end."""
    if _world is None:
        note_joined(os.getppid())
    elif not fork.is_child():
        fork.note_child(_world.process)
        for group, (_, store) in distributed_c10d._world.pg_map.items():
            fork.keep(group, store)


fork.on_fork(_forked)
