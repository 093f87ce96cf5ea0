"""`plan_save`, `plan_load`: what a checkpoint of a state takes, without writing or reading it, on meta tensors too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import torch

from ..devices import Device
from ..nn.patterns import Patterns
from ..planning.boxes.crossing import volumes
from ..planning.text import bytes_text
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .shares import check_storable
from .tree import State, flattened

__all__ = ["CheckpointPlan", "plan_load", "plan_save"]


@final
@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What each process writes or reads of a checkpoint, if each device is a process; prints itself.

    >>> plan = CheckpointPlan("save", tensors=2, by_process=(4096, 2048))
    >>> plan.total, plan.most, plan.seconds(1024), plan.seconds(1024, together=1024)
    (6144, 4096, 4.0, 6.0)
    >>> print(plan)
    to save 2 tensors: 4 KiB by the process with most, 6 KiB by 2 of 2 processes together
    """

    what: str
    """"save" or "load"."""
    tensors: int
    by_process: tuple[int, ...]
    """Bytes, in the order of the devices' ids."""

    @property
    def total(self) -> int:
        """The bytes of all processes together."""
        return sum(self.by_process)

    @property
    def most(self) -> int:
        """The bytes of the process that has most to do."""
        return max(self.by_process, default=0)

    def seconds(self, disk: float, together: float | None = None) -> float:
        """How long it takes where a process writes or reads so many bytes a second, and all together at most so many."""
        for name, speed in (("disk", disk), ("together", together)):
            if speed is not None and not speed > 0:
                raise ValueError(f"{name} is more than 0 bytes a second, but got {speed!r}")
        return max(self.most / disk, 0.0 if together is None else self.total / together)

    def __str__(self) -> str:
        busy = sum(map(bool, self.by_process))
        return (
            f"to {self.what} {self.tensors} tensor{'' if self.tensors == 1 else 's'}: {bytes_text(self.most)} by the process "
            f"with most, {bytes_text(self.total)} by {busy} of {len(self.by_process)} processes together"
        )


def plan_save(state: State) -> CheckpointPlan:
    """What `save` would write of a state, by process; each shard is written once, by the holder that has written least.

    Tensors need no values: a dry run's model and optimizer do, on devices that nobody has.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 64, "tp": 8}, devices=[weft.Accelerator(i) for i in range(512)])
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(8192, 8192, bias=False)
    >>> model = weft.nn.shard_module(model, mesh, {"weight": weft.P("tp", None)})
    >>> print(weft.checkpoint.plan_save(model))
    to save 1 tensor: 32 MiB by the process with most, 256 MiB by 8 of 512 processes together
    """
    tensors = _tensors(state)
    check_storable(tensors, plain=False)
    processes = _Processes(map(_layout, tensors.values()))
    known: set[int] = set()
    for x in tensors.values():
        if id(x) not in known:
            known.add(id(x))
            processes.write(x)
    return CheckpointPlan("save", len(tensors), processes.counted())


def plan_load(state: State, like: State = None) -> CheckpointPlan:
    """What `load` would read of a saved state, by process: each reads what its device will hold.

    `like` says the layouts, as for `load`: a state of the same names, a mapping for all tensors, or mappings by name patterns;
    without it they are those of the state.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> state = {"w": weft.zeros(8, 8, mapping=weft.NamedMapping(mesh, weft.P("tp")))}
    >>> weft.checkpoint.plan_load(state).by_process
    (64, 64, 64, 64)
    >>> weft.checkpoint.plan_load(state, weft.NamedMapping(mesh, weft.P())).by_process
    (256, 256, 256, 256)
    """
    tensors = _tensors(state)
    layouts = _layouts(tensors, like)
    processes = _Processes(layouts.values())
    for name, x in tensors.items():
        processes.read(x, layouts[name])
    return CheckpointPlan("load", len(tensors), processes.counted())


def _tensors(state: State) -> dict[str, torch.Tensor]:
    return flattened(state)[1]


def _layouts(tensors: Mapping[str, torch.Tensor], like: State) -> dict[str, Layout | None]:
    """The layout that each tensor is loaded in; None for one that every process has all of."""
    if like is None:
        return {name: _layout(x) for name, x in tensors.items()}
    if isinstance(like, DeviceMapping):
        return {name: like.layout(x.ndim) for name, x in tensors.items()}
    if isinstance(like, Mapping) and like and all(isinstance(each, DeviceMapping) for each in like.values()):
        patterns = Patterns(next(iter(like.values())).mesh, like)
        patterns.check_used(tensors, "tensor of the state")
        return {name: patterns.mapping(name).layout(x.ndim) for name, x in tensors.items()}
    there = _tensors(like)
    for name, x in tensors.items():
        if name not in there:
            raise CheckpointError(
                f"{name!r} is saved, but not in what it is loaded into: add it, or leave it out of both"
            )
        if there[name].shape != x.shape:
            shapes = tuple(x.shape), tuple(there[name].shape)
            raise CheckpointError(
                f"{name!r} is saved as {shapes[0]}, but loaded into {shapes[1]}: shapes must be equal"
            )
    return {name: _layout(there[name]) for name in tensors}


def _layout(x: torch.Tensor) -> Layout | None:
    return x._layout.resolved if isinstance(x, Tensor) else None


class _Processes:
    """Bytes by process, one for each device of some tensors or layouts."""

    def __init__(self, layouts: Iterable[Layout | None]) -> None:
        meshes = dict.fromkeys(layout.mesh for layout in layouts if layout is not None)
        devices = sorted({device for mesh in meshes for device in mesh.devices}, key=lambda device: device.id)
        self._index: dict[Device, int] = {device: number for number, device in enumerate(devices)}
        self._of_mesh = {mesh: torch.tensor([self._index[device] for device in mesh.devices]) for mesh in meshes}
        self._bytes = torch.zeros(max(1, len(devices)), dtype=torch.int64)

    def counted(self) -> tuple[int, ...]:
        """The bytes of each process."""
        return tuple(self._bytes.tolist())

    def write(self, x: torch.Tensor) -> None:
        """Each distinct shard, by whoever holds it and has written least."""
        if not isinstance(x, Tensor):
            self._bytes[0] += x.numel() * x.itemsize
            return
        layout = x._layout.resolved
        mesh = layout.mesh
        processes = _shard_by_shard(self._of_mesh[mesh], layout)
        sizes = _shard_by_shard(torch.tensor(volumes(layout, tuple(x.shape))), layout)[:, 0] * x.itemsize
        keys = self._bytes[processes] * len(self._bytes) + processes
        writers = keys.min(dim=1).values % len(self._bytes)
        self._bytes.index_add_(0, writers, sizes)

    def read(self, x: torch.Tensor, layout: Layout | None) -> None:
        """What each process will hold."""
        if layout is None:
            self._bytes += x.numel() * x.itemsize
            return
        held = torch.tensor(volumes(layout, tuple(x.shape))) * x.itemsize
        self._bytes.index_add_(0, self._of_mesh[layout.mesh], held)


def _shard_by_shard(by_slot: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Numbers by slot, as a row for each distinct shard."""
    mesh = layout.mesh
    split = [number for number, axis in enumerate(mesh.axis_names) if axis in layout.dim_of]
    whole = [number for number in range(mesh.ndim) if number not in split]
    rows = math.prod(mesh.mesh_shape[number] for number in split)
    return by_slot.view(mesh.mesh_shape).permute(*split, *whole).reshape(rows, -1)
