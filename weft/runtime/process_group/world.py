"""`World`: the processes of this program, and how this one joins and leaves them."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import distributed_c10d

from ...errors import WeftError
from .seeds import share_random_state

__all__ = ["DEFAULT_TIMEOUT", "World", "current", "is_launched", "join", "leave", "on_change", "on_leave"]

DEFAULT_TIMEOUT = timedelta(minutes=10)
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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

    def backend(self, device_type: str) -> str | None:
        """The backend for tensors on this kind of torch device, if any."""
        return dict(self.backends).get(device_type)

    @property
    def accelerators(self) -> bool:
        """Whether the devices of this program are accelerators."""
        return self.backend("cuda") == "nccl"

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
_listeners: list[Callable[[World], None]] = []
_before_leaving: list[Callable[[Leaving], None]] = []


def on_change(listener: Callable[[World], None]) -> None:
    """Registers what has to happen when this process joins or leaves the others."""
    _listeners.append(listener)


def on_leave(tell: Callable[[Leaving], None]) -> None:
    """Registers what has to happen before this process leaves the others."""
    _before_leaving.append(tell)


def is_launched() -> bool:
    """Whether a launcher has started this process together with others.

    >>> is_launched()
    False
    """
    # Asked by every movement of a process that is alone, so the usual answer comes first.
    if "WORLD_SIZE" not in os.environ or not all(name in os.environ for name in LAUNCHER_VARIABLES):
        return False
    return _number("WORLD_SIZE") > 1


def current() -> World:
    """The world of this process; under a launcher, the first call joins it."""
    if _world is not None:
        return _world
    if dist.is_available() and (dist.is_initialized() or is_launched()):
        return join()
    return ALONE


def join(
    backend: str | None = None, timeout: float | timedelta | None = None, devices_per_process: int | None = None
) -> World:
    """Joins the processes that a launcher started, or those of a torch.distributed that is initialised already."""
    span = _timeout(timeout)
    each = _devices_per_process(devices_per_process)
    if _world is not None:
        return _rejoined(_world, backend, timeout, devices_per_process)
    made_here = False
    if not dist.is_initialized():
        if not is_launched():
            return ALONE
        if torch.cuda.is_available():
            torch.cuda.set_device(_local_process() * each % torch.cuda.device_count())
        dist.init_process_group(_chosen(backend), timeout=span)
        made_here = True
    if dist.get_world_size() == 1:
        return ALONE
    here, number = dist.get_rank(), next(_joins)
    share_random_state(_store_of(number), here, span)
    served = _served()
    return _entered(World(here, dist.get_world_size(), each, _local_process(), served, span, made_here, number))


def leave() -> None:
    """Leaves the other processes; leaving twice, or without having joined, does nothing."""
    global _world  # noqa: PLW0603 - one world a process
    world = _world
    if world is None:
        return
    error = getattr(sys, "last_value", None)
    # An error about another process is no news to the others.
    said = None if error is None or isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
    # torchrun keeps the store in a process of its own; else the first process has it.
    keeps = world.process == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    for tell in reversed(_before_leaving):  # what was built last leaves first
        tell(Leaving(said, error is not None, keeps))
    _world = None
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
    return _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else dist.get_rank() if dist.is_initialized() else 0


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name} is a whole number that a launcher sets, but it is {text!r}")
    return int(text)


def _timeout(timeout: object) -> timedelta:
    if timeout is None:
        return DEFAULT_TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, timedelta)):
        raise TypeError(f"timeout is in seconds or a timedelta, but got {timeout!r}")
    span = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
    if span <= timedelta(0):
        raise ValueError(f"timeout is more than 0 seconds, but got {timeout!r}")
    return span


def _devices_per_process(count: int | None) -> int:
    if count is None:
        text = os.environ.get("WEFT_DEVICES_PER_PROCESS", "1")
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"WEFT_DEVICES_PER_PROCESS is a whole number, 1 or more, but it is {text!r}")
        return int(text)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"devices_per_process is a whole number, 1 or more, but got {count!r}")
    return count
