"""The words of a program that mean a movement or a new tensor: one meaning on plain torch, one on Weft."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import torch
from torch.nn import functional

import weft
from weft.devices import Device
from weft.sharding.layout import Layout
from weft.sharding.placements import ReduceOp

Namespace = dict[str, object]
BY_ROWS = 1001
"""The number that stands for a first dim that all axes split; those below a thousand stand for any layout."""
KINDS = ("sum", "mean", "max", "min", "prod")


def values(shape: Sequence[int], dtype: str, seed: int) -> torch.Tensor:
    """Numbers that look alike in every run; short ones, whose sums are exact in any order, two times of three."""
    made = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.rand(shape, generator=made) < 0.5
    if not kind.is_floating_point and not kind.is_complex:
        return torch.randint(-4, 5, tuple(shape), generator=made).to(kind)
    parts = [torch.randn(shape, generator=made, dtype=torch.float64) for _ in range(2 if kind.is_complex else 1)]
    if seed % 3 or kind is torch.bfloat16:
        parts = [(part * 8).round() / 8 + 0.0 for part in parts]  # a sum knows no negative zero
    return (torch.complex(parts[0], parts[1]) if kind.is_complex else parts[0]).to(kind)


def layout_of(mesh: weft.DeviceMesh, rank: int, code: int) -> Layout:
    """The layout without pending reductions that a number stands for."""
    if code == BY_ROWS:
        return Layout(mesh, [mesh.axis_names, *[()] * (rank - 1)] if rank else [])
    rng = random.Random(code)
    splits: list[list[str]] = [[] for _ in range(rank)]
    axes = list(mesh.axis_names)
    rng.shuffle(axes)
    for axis in axes:
        if rank and rng.random() < 0.7:
            splits[rng.randrange(rank)].append(axis)
    return Layout(mesh, splits)


def pending_of(layout: Layout, dtype: torch.dtype, code: int) -> dict[str, str]:
    """Which of the axes that split nothing hold a pending reduction, and of which kind."""
    rng = random.Random(code * 7 + 1)
    kinds = ("max", "min") if dtype is torch.bool else ("sum", "mean", "prod") if dtype.is_complex else KINDS
    if not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool:
        kinds = ("sum", "max", "min", "prod")
    kind = rng.choice(kinds)  # two kinds at once have no order, and Weft refuses them
    return {axis: kind for axis in layout.replicated_axes if rng.random() < 0.5}


def _contributions(value: torch.Tensor, kind: str, count: int, rng: random.Random) -> list[torch.Tensor]:
    """What devices hold whose reduction is `value`, exactly."""
    lucky = rng.randrange(count)
    least, most = (0, 255) if value.dtype is torch.uint8 else (-9, 9)
    others = {"sum": 0, "mean": 0, "prod": 1, "max": least, "min": most}[kind]
    if value.dtype is torch.bool:
        held = [torch.full_like(value, kind == "min") for _ in range(count)]
    else:
        held = [torch.full_like(value, others) for _ in range(count)]
    held[lucky] = value * count if kind == "mean" else value.clone()
    if kind == "sum" and count > 1:
        more = _short_shares(value.shape) if value.dtype is torch.bfloat16 else 2
        held[lucky] = held[lucky] - more
        held[(lucky + 1) % count] = held[(lucky + 1) % count] + more
    if kind == "prod" and count > 1 and value.dtype.is_floating_point:
        held[lucky], held[lucky - 1] = held[lucky] * 4, held[lucky - 1] / 4
    return held


def _short_shares(shape: Sequence[int]) -> torch.Tensor:
    """What devices have more and less of numbers with eight digits: so little that they lose none where many are added up."""
    signs = torch.randint(2, tuple(shape), generator=torch.Generator().manual_seed(0))
    return (signs - 0.5).to(torch.bfloat16)


def _box(value: torch.Tensor, layout: Layout, place: Mapping[str, int]) -> torch.Tensor:
    for dim, axes in enumerate(layout.splits):
        for axis in axes:
            count = layout.mesh.axis_size(axis)
            each, more = divmod(value.shape[dim], count)
            index = place[axis]
            value = value.narrow(dim, index * each + min(index, more), each + (index < more))
    return value


def _spread(value: torch.Tensor, layout: Layout, pending: Mapping[str, str], code: int) -> weft.Tensor:
    """The tensor that has `value`, of the shards of the devices of this process."""
    mesh, rng = layout.mesh, random.Random(code)
    held: dict[tuple[int, ...], torch.Tensor] = {(): value}
    waiting = [axis for axis in mesh.axis_names if axis in pending]
    for axis in waiting:
        held = {
            (*place, index): part
            for place, whole in held.items()
            for index, part in enumerate(_contributions(whole, pending[axis], mesh.axis_size(axis), rng))
        }
    places = [
        dict(zip(mesh.axis_names, place, strict=True)) for place in product(*(range(size) for size in mesh.mesh_shape))
    ]
    mine = set(weft.local_devices())
    shards = [
        _box(held[tuple(place[axis] for axis in waiting)], layout, place).clone()
        for place, device in zip(places, mesh.devices, strict=True)
        if device in mine
    ]
    whole = Layout(mesh, layout.splits, {axis: ReduceOp.of(kind) for axis, kind in pending.items()})
    return weft.from_local(shards, mapping(whole), shape=value.shape, dtype=value.dtype)


def mapping(layout: Layout) -> weft.NamedMapping:
    entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in layout.splits]
    return weft.NamedMapping(layout.mesh, weft.P(*entries), dict(layout.pending))


def spread_devices(count: int, processes: int) -> list[Device]:
    """Devices for a mesh, in turn of each process."""
    every = list(weft.devices())
    each = len(every) // processes
    order = [every[p * each + i] for i in range(each) for p in range(processes)]
    return sorted(order[:count], key=every.index)


def strides(x: torch.Tensor) -> list[int]:
    """The strides of a tensor that mean something: of dims with more than one element, where there is any."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1 and x.numel()]


def _shared() -> Namespace:
    return {"torch": torch, "F": functional, "inf": math.inf, "nan": math.nan, "strides": strides}


def without_memory(words: Namespace) -> Namespace:
    """The same names where new tensors have no memory: they are on the device `meta`."""

    def bare(word: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*args: object, grad: bool = False) -> torch.Tensor:
            return word(*args).to("meta").requires_grad_(grad)

        return made

    return {**words, "fresh": bare(words["fresh"]), "put": bare(words["put"])}  # type: ignore[arg-type]


def plain_words() -> Namespace:
    """A program's names on plain torch."""

    def fresh(shape: Sequence[int], dtype: str, seed: int, code: int, grad: bool = False) -> torch.Tensor:
        return values(shape, dtype, seed).requires_grad_(grad)

    def put(data: object, code: int) -> torch.Tensor:
        return torch.tensor(data)

    def move(x: torch.Tensor, code: int) -> torch.Tensor:
        return x.clone()

    return {**_shared(), "fresh": fresh, "put": put, "move": move, "gather": lambda x: move(x, 0)}


def weft_words(mesh: weft.DeviceMesh) -> Namespace:
    """The same names on Weft."""

    def fresh(shape: Sequence[int], dtype: str, seed: int, code: int, grad: bool = False) -> weft.Tensor:
        value = values(shape, dtype, seed)
        layout = layout_of(mesh, len(shape), code)
        pending = pending_of(layout, value.dtype, code) if code % 2 else {}
        return _spread(value, layout, pending, code).detach().requires_grad_(grad)

    def put(data: object, code: int) -> torch.Tensor:
        value = torch.tensor(data)
        if code % 5 == 0:
            return value
        return weft.shard(value, mesh, mapping(layout_of(mesh, value.dim(), code)).spec)

    def move(x: torch.Tensor, code: int) -> torch.Tensor:
        wanted = mapping(layout_of(mesh, x.dim(), code))
        return x.redistribute(wanted) if code % 2 and isinstance(x, weft.Tensor) else weft.shard(x, mesh, wanted.spec)

    words: dict[str, Callable[..., torch.Tensor]] = {"fresh": fresh, "put": put, "move": move}
    return {**_shared(), **words, "gather": weft.all_gather}
