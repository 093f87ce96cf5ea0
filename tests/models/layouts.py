"""The layouts that each model runs in: data parallel, tensor parallel by patterns on matrices, and both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import weft
from weft import P
from weft.devices import Device
from weft.sharding import DeviceMesh


@dataclass(frozen=True)
class Layout:
    """The mesh's axes and their sizes."""

    axes: Mapping[str, int]

    @property
    def devices(self) -> int:
        """How many devices it takes."""
        return torch.Size(self.axes.values()).numel()

    def mesh(self, devices: Sequence[Device]) -> DeviceMesh:
        """The mesh over these devices."""
        return DeviceMesh(devices[: self.devices], tuple(self.axes.values()), tuple(self.axes))


LAYOUTS = {
    "dp": Layout({"dp": 2}),
    "tp": Layout({"tp": 2}),
    "dp x tp": Layout({"dp": 2, "tp": 2}),
}


def sharded(model: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
    """The model with its matrices split by rows and by columns in turn where the mesh has an axis for that."""
    matrices = [name for name, x in model.named_parameters() if x.dim() == 2]
    specs = {name: (P("tp", None), P(None, "tp"))[i % 2] for i, name in enumerate(matrices)}
    return weft.nn.shard_module(model, mesh, specs if "tp" in mesh.axis_names else {})


def laid(inputs: Mapping[str, object], mesh: DeviceMesh) -> dict[str, object]:
    """The inputs, with the batch split where the mesh has an axis for that."""
    spec = P("dp") if "dp" in mesh.axis_names else P()
    return {name: weft.shard(x, mesh, spec) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
