"""Movements at random with staged plans, in several processes: what they give is what plain torch gives.

    staged.py SEED CASES

The hosts are pretended: links between them are so slow that every plan that can goes through them. In each case all processes
draw the same layouts, meshes, shape, dtype and reduction, and the contributions of every device.
"""

from __future__ import annotations

import math
import random
import sys
from functools import reduce

import torch

import weft
from weft import CPU
from weft.planning import Link, Topology, plan_layouts
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.geometry import box
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

SLOW = Link(0.0, 1.0)
MACHINES = [
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, devices_per_host=2),
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, hosts=(0, 1, 1, 0)),
    Topology(host=Link(0.0, 1e9), rack=SLOW, fabric=SLOW, hosts=(0, 0, 0, 1)),
    Topology(host=Link(0.0, 1e9), rack=Link(0.0, 1e6), fabric=SLOW, devices_per_host=1, hosts_per_rack=2),
]
SHAPES = [(4,), (2, 2), (2, 2), (2,), (3,)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.complex64]
COMBINE = {ReduceOp.SUM: torch.add, ReduceOp.MAX: torch.maximum, ReduceOp.MIN: torch.minimum, ReduceOp.PROD: torch.mul}


def mesh_of(rng: random.Random) -> DeviceMesh:
    shape = rng.choice(SHAPES)
    ids = rng.sample(range(4), math.prod(shape))
    return DeviceMesh([CPU(i) for i in ids], shape, tuple("abc")[: len(shape)])


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


def run(rng: random.Random, process: int) -> bool:
    """One case; whether its plan is staged."""
    shape = tuple(rng.choice([1, 2, 3, 5, 8, 9]) for _ in range(rng.randrange(1, 4)))
    dtype = rng.choice(DTYPES)
    kinds = [ReduceOp.SUM] if dtype is torch.complex64 else list(COMBINE)
    op = rng.choice([None, *kinds])
    mesh = mesh_of(rng)
    source = layout_of(rng, mesh, len(shape), op)
    target = layout_of(rng, mesh if rng.random() < 0.6 else mesh_of(rng), len(shape), op)
    given = contributions(source, shape, dtype, rng.randrange(1 << 30))
    own = [slot for slot, device in enumerate(mesh.devices) if device.id == process]
    x = weft.from_local(
        [held(source, given, shape, slot) for slot in own], named_mapping(source), shape=shape, dtype=dtype
    )
    plan = plan_layouts(source, target, shape, dtype.itemsize)
    y = x.redistribute(named_mapping(target))
    whole = y.full_tensor()
    expected = reduce(COMBINE[op], given.values()) if op else next(iter(given.values()))
    assert torch.equal(whole, expected), f"{plan}\n{whole}\n{expected}"
    return any(step.stages is not None for step in plan.steps)


def main(seed: int, cases: int) -> None:
    weft.distributed.init(timeout=60)
    process = weft.local_devices()[0].id
    staged = 0
    for number, machine in enumerate(MACHINES):
        with weft.use_topology(machine):
            for case in range(cases // len(MACHINES)):
                staged += run(random.Random(f"{seed} {number} {case}"), process)
    assert staged > cases // 10, f"only {staged} of {cases} plans were staged"
    print("all equal")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
