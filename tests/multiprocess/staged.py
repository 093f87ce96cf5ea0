"""Movements at random with staged plans, in several processes: what they give is what plain torch gives.

    staged.py SEED CASES          in 4 processes, of CPUs or of GPUs

The hosts are pretended: links between them are so slow that every plan that can goes through them. In each case all processes
draw the same layouts, meshes, shape, dtype and reduction, and the contributions of every device.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from dataclasses import dataclass
from functools import reduce
from unittest import mock

import torch

import weft
from weft import NamedMapping, P
from weft.planning import Link, Topology, plan_layouts
from weft.runtime.machine import torch_device
from weft.runtime.processes import world
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping
from weft.state import staging

SLOW = Link(0.0, 1.0)
MACHINES = [
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, devices_per_host=2),
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, hosts=(0, 1, 1, 0)),
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, hosts=(0, 0, 0, 1)),
    Topology(host=Link(0.0, 1e9), rack=Link(0.0, 1e6), fabric=SLOW, devices_per_host=1, hosts_per_rack=2),
]
SHAPES = [(4,), (2, 2), (2, 2), (3,)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.complex64]
COMBINE = {ReduceOp.SUM: torch.add, ReduceOp.MAX: torch.maximum, ReduceOp.MIN: torch.minimum, ReduceOp.PROD: torch.mul}


def mesh_of(rng: random.Random) -> DeviceMesh:
    shape = rng.choice(SHAPES)
    ids = rng.sample(range(4), math.prod(shape))
    every = weft.devices()
    return DeviceMesh([every[i] for i in ids], shape, tuple("abc")[: len(shape)])


def layout_of(rng: random.Random, mesh: DeviceMesh, rank: int, op: ReduceOp | None) -> Layout:
    splits: list[list[str]] = [[] for _ in range(rank)]
    pending = {}
    for axis in rng.sample(mesh.axis_names, mesh.ndim):
        role = rng.randrange(-2, rank)
        if role >= 0:
            splits[role].append(axis)
        elif role == -2 and op is not None:
            pending[axis] = op
    return Layout(mesh, splits, pending)


def contributions(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> dict[object, torch.Tensor]:
    """One whole tensor for each coordinate along the pending axes; small numbers, so that no order rounds."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[object, torch.Tensor] = {}
    for slot in range(layout.mesh.num_devices):
        at = tuple(layout.mesh.device_coord(slot, axis) for axis in layout.pending_axes)
        if at not in found:
            found[at] = torch.randint(1, 3, shape, generator=generator).to(dtype)
    return found


def held(layout: Layout, given: dict[object, torch.Tensor], shape: tuple[int, ...], slot: int) -> torch.Tensor:
    at = tuple(layout.mesh.device_coord(slot, axis) for axis in layout.pending_axes)
    where = tuple(slice(start, stop) for start, stop in box(layout, shape, slot))
    return given[at][where].clone()


@dataclass(frozen=True)
class Case:
    """A tensor, and where it goes."""

    source: Layout
    target: Layout
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: ReduceOp | None

    @staticmethod
    def drawn(rng: random.Random) -> Case:
        shape = tuple(rng.choice([1, 2, 3, 5, 8, 9]) for _ in range(rng.randrange(1, 4)))
        dtype = rng.choice(DTYPES)
        op = rng.choice([None, ReduceOp.SUM] if dtype is torch.complex64 else [None, *COMBINE])
        mesh = mesh_of(rng)
        source = layout_of(rng, mesh, len(shape), op)
        other = mesh if rng.random() < 0.6 else mesh_of(rng)
        return Case(source, layout_of(rng, other, len(shape), op), shape, dtype, op)

    @property
    def is_staged(self) -> bool:
        plan = plan_layouts(self.source, self.target, self.shape, self.dtype.itemsize)
        return any(step.stages is not None for step in plan.steps)

    def check(self, process: int, seed: int) -> None:
        given = contributions(self.source, self.shape, self.dtype, seed)
        where = torch_device(weft.local_devices()[0])
        shards = [held(self.source, given, self.shape, slot).to(where) for slot in owned(self.source.mesh, process)]
        x = weft.from_local(shards, named_mapping(self.source), shape=self.shape, dtype=self.dtype)
        y = x.redistribute(named_mapping(self.target))
        expected = reduce(COMBINE[self.op], given.values()) if self.op else next(iter(given.values()))
        if self.target.pending:
            assert torch.equal(y.full_tensor().cpu(), expected), self
            return
        for shard, slot in zip(y.local_shards, owned(self.target.mesh, process), strict=True):
            assert torch.equal(shard.cpu(), held(self.target, {(): expected}, self.shape, slot)), (self, slot)


def owned(mesh: DeviceMesh, process: int) -> list[int]:
    return [slot for slot, device in enumerate(mesh.devices) if device.id == process]


def check_parts(process: int) -> None:
    """A movement that may hold little goes part by part, also through the hosts."""
    mesh = DeviceMesh(weft.devices(), (2, 2), ("a", "b"))
    source, target = Layout(mesh, ((), ("b",)), {"a": ReduceOp.SUM}), Layout(mesh, (("a",), ()))
    shape = (12, 10, 64)
    source, target = (Layout(mesh, (*layout.splits, ()), layout.pending) for layout in (source, target))
    given = contributions(source, shape, torch.float32, 0)
    where = torch_device(weft.local_devices()[0])
    shards = [held(source, given, shape, slot).to(where) for slot in owned(mesh, process)]
    x = weft.from_local(shards, named_mapping(source), shape=shape, dtype=torch.float32)
    free = plan_layouts(source, target, shape, 4)
    plan = plan_layouts(source, target, shape, 4, memory_limit=free.peak_memory - 1)
    assert plan.parts is not None, free
    y = x.redistribute(named_mapping(target), memory_limit=free.peak_memory - 1)
    expected = reduce(torch.add, given.values())
    for shard, slot in zip(y.local_shards, owned(mesh, process), strict=True):
        assert torch.equal(shard.cpu(), held(target, {(): expected}, shape, slot))


def check_state(process: int) -> None:
    """Large tensors of a state go through the hosts, too, where replicas there share what enters."""
    every = weft.devices()
    mesh, near = DeviceMesh(every, (4,), ("x",)), DeviceMesh(every[2:], (2,), ("y",))
    given = {"large": torch.arange(96.0).view(12, 8), "small": torch.arange(5.0)}
    state = weft.shard(given, mesh, P("x"))
    with mock.patch.object(staging, "LARGE", 96):
        plan = weft.plan_state(state, NamedMapping(near, P()), torch.bfloat16)
        moved = weft.transfer_state(state, NamedMapping(near, P()), torch.bfloat16)
    assert [entry.plan is not None for entry in plan.entries] == [True, False], plan
    for name, x in given.items():
        for shard in moved[name].local_shards:
            assert torch.equal(shard.cpu(), x.bfloat16()), (name, process)


def found(seed: str, count: int, process: int) -> list[int]:
    """The numbers of cases whose plans are staged: the first process looks for them, and tells the others."""
    if process == 0:
        numbers = (number for number in itertools.count() if Case.drawn(random.Random(f"{seed} {number}")).is_staged)
        world.store().set(f"cases {seed}", json.dumps(list(itertools.islice(numbers, count))))
    return list(json.loads(world.store().get(f"cases {seed}")))


def main(seed: int, cases: int) -> None:
    weft.distributed.init(timeout=60)
    process = weft.local_devices()[0].id
    for at, machine in enumerate(MACHINES):
        with weft.use_topology(machine):
            for number in found(f"{seed} {at}", cases // len(MACHINES), process):
                case = Case.drawn(random.Random(f"{seed} {at} {number}"))
                assert case.is_staged, case
                case.check(process, number)
            check_parts(process)
            if at == 0:
                check_state(process)
    print("all equal")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
