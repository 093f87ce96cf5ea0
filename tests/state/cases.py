"""States at random: tensors of all dtypes in layouts of two meshes, and the layouts that they are to get."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import weft
from weft import DeviceMesh, NamedMapping, P

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@dataclass(frozen=True)
class Case:
    """A plain state, the same in layouts, and the mappings that it is to get."""

    plain: dict[str, torch.Tensor]
    state: dict[str, torch.Tensor]
    wanted: dict[str, NamedMapping]


def spec(draw: random.Random, mesh: DeviceMesh, rank: int) -> NamedMapping:
    """A layout of a tensor of some rank: any axes split any dims, in any order."""
    entries: list[tuple[str, ...]] = [() for _ in range(rank)]
    axes = list(mesh.axis_names)
    draw.shuffle(axes)
    for axis in axes:
        dim = draw.randint(0, rank)
        if dim < rank:
            entries[dim] = (*entries[dim], axis)
    return NamedMapping(mesh, P(*(entry or None for entry in entries)))


def case(seed: int, meshes: Sequence[DeviceMesh], count: int = 8) -> Case:
    """A state at random, the same in every process."""
    draw = random.Random(seed)
    plain: dict[str, torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    wanted: dict[str, NamedMapping] = {}
    for number in range(count):
        shape = [draw.choice((0, 1, 2, 3, 5, 8)) for _ in range(draw.randint(0, 3))]
        generator = torch.Generator().manual_seed(seed * 100 + number)
        x = torch.randint(-100, 100, shape, generator=generator).to(draw.choice(DTYPES))
        if x.dim() > 1 and draw.random() < 0.3:
            x = x.mT.contiguous().mT
        name = f"t{number}"
        plain[name] = x
        state[name] = weft.shard(x, *_given(spec(draw, draw.choice(meshes), x.dim())))
        wanted[name] = spec(draw, draw.choice(meshes), x.dim())
    return Case(plain, state, wanted)


def _given(mapping: NamedMapping) -> tuple[DeviceMesh, NamedMapping]:
    return mapping.mesh, mapping


def check(found: Case, moved: dict[str, torch.Tensor]) -> None:
    """A state that was moved has the values, dtypes and strides it had, in the layouts that were asked for."""
    for name, x in found.plain.items():
        y = moved[name]
        assert y.mapping.layout(x.dim()) is found.wanted[name].layout(x.dim()), name
        assert (y.dtype, tuple(y.shape)) == (x.dtype, tuple(x.shape)), name
        assert y.stride() == found.state[name].redistribute(found.wanted[name]).stride(), name
        assert torch.equal(y.full_tensor(), x), name
