"""`Group`: some of the processes, which communicate with each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
import torch.distributed as dist

from ...sharding.mesh import DeviceMesh
from ..machine import residence
from . import world

__all__ = ["Group", "component", "group_of", "owners_of"]

Processes = tuple[int, ...]
"""Some processes, in order."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Some of the processes, this one among them, and the torch group through which they communicate."""

    processes: Processes
    handle: dist.ProcessGroup
    index: int
    """The index of this process among them."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self.processes)


@lru_cache(maxsize=4096)
def group_of(processes: Processes) -> Group:
    """The group of these processes, made when it is first needed and used from then on.

    Only its members take part in making it, so processes that have nothing to do with it do not wait.
    """
    here = world.current()
    if here.process not in processes:
        raise ValueError(f"process {here.process} is not among the processes {processes}")
    handle = dist.new_group(list(processes), timeout=here.timeout, use_local_synchronization=True, group_desc="weft")
    return Group(processes, handle, processes.index(here.process))


world.on_change(lambda _: group_of.cache_clear())


@lru_cache(maxsize=4096)
def owners_of(*meshes: DeviceMesh) -> Processes:
    """The processes that own devices of these meshes, in order."""
    return tuple(sorted({owner for mesh in meshes for owner in residence(mesh).owners}))


world.on_change(lambda _: owners_of.cache_clear())


@lru_cache(maxsize=4096)
def component(mesh: DeviceMesh, axes: tuple[str, ...]) -> Processes:
    """The processes that this one communicates with along some axes, itself included; none if it owns no slot.

    Processes are connected when slots of theirs stand in one group along the axes.
    """
    owners = residence(mesh).owners
    here = world.current().process
    neighbours: dict[int, set[int]] = {}
    for slots in mesh.groups(axes) if axes else ((slot,) for slot in range(mesh.num_devices)):
        members = {owners[slot] for slot in slots}
        for member in members:
            neighbours.setdefault(member, set()).update(members)
    found: set[int] = set()
    waiting = [here] if here in neighbours else []
    while waiting:
        process = waiting.pop()
        if process not in found:
            found.add(process)
            waiting.extend(neighbours[process])
    return tuple(sorted(found))


world.on_change(lambda _: component.cache_clear())


def wire_device(*meshes: DeviceMesh) -> torch.device:
    """On which kind of torch device the tensors between processes lie: on accelerators if all devices are such."""
    here = world.current()
    if here.backend("cuda") == "nccl" and (
        here.backend("cpu") is None or not any(device.is_host for mesh in meshes for device in mesh.devices)
    ):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
