"""Pending sums from mesh to mesh at random, in several processes: values and gradients are those of plain torch.

    across.py SEED CASES          in 2 to 4 processes, of CPUs or of GPUs

In each case all processes draw the same layouts, meshes, shape, dtype and reduction, and the contributions of every device.
"""

from __future__ import annotations

import math
import os
import random
import sys
from functools import reduce

import torch

import weft
from tests.multiprocess.staged import COMBINE, DTYPES, contributions, held
from weft.planning import plan_layouts
from weft.runtime.machine import torch_device
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

SHAPES = [(2,), (3,), (4,), (2, 2), (6,), (2, 3), (8,), (2, 4)]


def layout_of(rng: random.Random, names: str, rank: int, op: ReduceOp) -> Layout:
    """A layout on some of all devices, half of whose axes hold something pending."""
    every = weft.devices()
    shape = rng.choice([shape for shape in SHAPES if math.prod(shape) <= len(every)])
    mesh = DeviceMesh(rng.sample(list(every), math.prod(shape)), shape, tuple(names[: len(shape)]))
    splits: list[list[str]] = [[] for _ in range(rank)]
    pending = {}
    for axis in rng.sample(mesh.axis_names, mesh.ndim):
        role = rng.choice([-2, -2, -1, *range(rank)])
        if role >= 0:
            splits[role].append(axis)
        elif role == -2:
            pending[axis] = op
    return Layout(mesh, splits, pending)


def owned(mesh: DeviceMesh) -> list[int]:
    mine = set(weft.local_devices())
    return [slot for slot, device in enumerate(mesh.devices) if device in mine]


def check(rng: random.Random, seed: int) -> bool:
    """Moves one tensor there, and its gradient back; whether that was a reduction from mesh to mesh."""
    shape = tuple(rng.choice([1, 3, 5, 8, 13]) for _ in range(rng.randrange(1, 4)))
    dtype = rng.choice(DTYPES)
    op = ReduceOp.SUM if dtype is torch.complex64 else rng.choice([ReduceOp.SUM, *COMBINE])
    source, target = layout_of(rng, "ab", len(shape), op), layout_of(rng, "xy", len(shape), op)
    given = contributions(source, shape, dtype, seed)
    where = torch_device(weft.local_devices()[0])
    shards = [held(source, given, shape, slot).to(where) for slot in owned(source.mesh)]
    x = weft.from_local(shards, named_mapping(source), shape=shape, dtype=dtype)
    differentiable = op is ReduceOp.SUM and dtype.is_floating_point
    if differentiable:
        x.requires_grad_()
    y = x.redistribute(named_mapping(target))
    expected = reduce(COMBINE[op], given.values())
    assert torch.equal(y.full_tensor().detach().cpu(), expected), (source, target, shape, dtype)
    if not target.pending:
        for shard, slot in zip(y.local_shards, owned(target.mesh), strict=True):
            assert torch.equal(shard.detach().cpu(), held(target, {(): expected}, shape, slot)), (source, target, slot)
    if differentiable:
        weight = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
        (y * weight.to(where)).sum().backward()
        # Of what is pending, all contributions have the gradient of the whole.
        assert torch.equal(x.grad.full_tensor().cpu(), weight), (source, target, shape, dtype)
    steps = plan_layouts(source, target, shape, dtype.itemsize).steps
    return any(step.kind == "reduce_across" for step in steps)


def main(seed: int, cases: int) -> None:
    weft.distributed.init(timeout=60, devices_per_process=4 // int(os.environ["WORLD_SIZE"]))
    across = sum(check(random.Random(f"{seed} {number}"), number) for number in range(cases))
    assert across > cases // 3, across
    print("all equal")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
