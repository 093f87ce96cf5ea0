"""Which processes have to do with a mesh: who owns its devices, and whom this one communicates with."""

from __future__ import annotations

import torch

from ...caches import cached
from ...planning import LocalSlice, Step
from ...sharding.mesh import DeviceMesh
from ..machine import forget_with_residences, residence
from . import world
from .group import Processes

__all__ = ["component", "is_elsewhere", "leaves_out", "owners_of", "processes_of", "spans", "wire_device"]


def spans(*meshes: DeviceMesh) -> bool:
    """Whether these meshes have devices of several processes."""
    return world.current().count > 1 and len(owners_of(*meshes)) > 1


def is_elsewhere(*meshes: DeviceMesh) -> bool:
    """Whether this process owns no device of these meshes."""
    return world.current().count > 1 and not any(residence(mesh).owned for mesh in meshes)


def leaves_out(mesh: DeviceMesh) -> bool:
    """Whether some process owns no device of a mesh."""
    return len(owners_of(mesh)) < world.current().count


@cached(4096, cleared_by=forget_with_residences)
def owners_of(*meshes: DeviceMesh) -> Processes:
    """The processes that own devices of these meshes, in order."""
    return tuple(sorted({owner for mesh in meshes for owner in residence(mesh).owners}))


@cached(4096, cleared_by=forget_with_residences)
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


def wire_device(*meshes: DeviceMesh) -> torch.device:
    """On which kind of torch device the tensors between processes lie: on accelerators if all devices are such."""
    here = world.current()
    if here.backend("cuda") == "nccl" and (
        here.backend("cpu") is None or not any(device.is_host for mesh in meshes for device in mesh.devices)
    ):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def processes_of(step: Step) -> Processes:
    """The processes that carry out a step together with this one."""
    if isinstance(step, LocalSlice):
        return (world.current().process,)
    if step.source.mesh == step.target.mesh:
        return component(step.source.mesh, step.axes)
    return owners_of(step.source.mesh, step.target.mesh)
