"""The layout transitions that are measured: twelve that programs meet, on a line or a grid of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import final

import torch

from ..devices import Device
from ..sharding.geometry import box
from ..sharding.layout import Layout
from ..sharding.mapping import NamedMapping
from ..sharding.mesh import DeviceMesh, make_mesh
from ..sharding.named import P
from ..sharding.placements import ReduceOp
from ..tensor.creation import of_shards
from ..tensor.movements import shard

__all__ = ["TRANSITIONS", "MatrixTransition", "grid_of", "line_of"]


def line_of(devices: Sequence[Device]) -> DeviceMesh:
    """All devices along one axis, `d`.

    >>> from weft import CPU
    >>> str(line_of([CPU(0), CPU(1)]))
    'd=2'
    """
    return make_mesh({"d": len(devices)}, devices=devices)


def grid_of(devices: Sequence[Device]) -> DeviceMesh:
    """All devices along two axes, `dp` and `tp`, as square as their number allows.

    >>> from weft import CPU
    >>> str(grid_of([CPU(i) for i in range(8)]))
    'dp=2 × tp=4'
    """
    count = len(devices)
    rows = max(i for i in range(1, isqrt(count) + 1) if count % i == 0)
    return make_mesh({"dp": rows, "tp": count // rows}, devices=devices)


@final
@dataclass(frozen=True, slots=True)
class MatrixTransition:
    """From one layout of a matrix to another; axes in `pending` hold a sum that is still to be taken."""

    name: str
    source: P
    target: P
    pending: tuple[str, ...] = ()

    @property
    def on_line(self) -> bool:
        """Whether the mesh has one axis, `d`, and not `dp` and `tp`."""
        return any("d" in names for names in (self.source, self.target, self.pending))

    def mesh(self, devices: Sequence[Device]) -> DeviceMesh:
        """The mesh it happens on."""
        return line_of(devices) if self.on_line else grid_of(devices)

    def mapping(self, mesh: DeviceMesh) -> NamedMapping:
        """How the tensor lies before."""
        return NamedMapping(mesh, self.source, unreduced=dict.fromkeys(self.pending, ReduceOp.SUM))

    def layouts(self, mesh: DeviceMesh) -> tuple[Layout, Layout]:
        """Where it begins and where it ends."""
        return self.mapping(mesh).layout(2), NamedMapping(mesh, self.target).layout(2)

    def contributions(self, mesh: DeviceMesh) -> int:
        """How many tensors of the whole shape there are before: one, or those still to be summed."""
        return prod(mesh.axis_size(axis) for axis in self.pending)

    def tensor(self, mesh: DeviceMesh, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor before, made of its contributions."""
        if not self.pending:
            return shard(parts[0], mesh, self.mapping(mesh))
        layout, _ = self.layouts(mesh)
        shape = tuple(parts[0].shape)
        sizes = {axis: mesh.axis_size(axis) for axis in self.pending}
        shards = []
        for slot in range(mesh.num_devices):
            at = 0
            for axis, size in sizes.items():
                at = at * size + mesh.coords(slot)[mesh.axis_index(axis)]
            where = tuple(slice(low, high) for low, high in box(layout, shape, slot))
            shards.append(parts[at][where])
        return of_shards(shards, self.mapping(mesh))


TRANSITIONS: tuple[MatrixTransition, ...] = (
    MatrixTransition("S0→S1", P("d"), P(None, "d")),
    MatrixTransition("S0→R", P("d"), P()),
    MatrixTransition("R→S0", P(), P("d")),
    MatrixTransition("P→R", P(), P(), ("d",)),
    MatrixTransition("P→S0", P(), P("d"), ("d",)),
    MatrixTransition("(dp, tp)→(tp, dp)", P("dp", "tp"), P("tp", "dp")),
    MatrixTransition("(dp, –)→(–, dp)", P("dp"), P(None, "dp")),
    MatrixTransition("(dp, tp)→R", P("dp", "tp"), P()),
    MatrixTransition("(dp·tp, –)→(tp·dp, –)", P(("dp", "tp")), P(("tp", "dp"))),
    MatrixTransition("(dp·tp, –)→(dp, tp)", P(("dp", "tp")), P("dp", "tp")),
    MatrixTransition("(dp·tp, –)→(tp, –)", P(("dp", "tp")), P("tp")),
    MatrixTransition("(dp, –) sum@tp→(dp, tp)", P("dp"), P("dp", "tp"), ("tp",)),
)
"""S0: rows over all devices; S1: columns; R: a copy on each; P: a sum that is still to be taken."""
