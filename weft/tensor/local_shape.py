"""What the shards of this process say about the whole tensor, and what the other processes add to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

from ..runtime.machine import residence
from ..runtime.processes import world
from ..runtime.processes.agreement.values import gathered
from ..sharding.geometry import box, box_shape
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping
from ..sharding.mesh import DeviceMesh

__all__ = ["WholeForm", "whole_of"]


@final
@dataclass(frozen=True, slots=True)
class WholeForm:
    """The tensor that shards make up."""

    layout: Layout
    shape: tuple[int, ...]
    dtype: torch.dtype


def whole_of(
    shards: Sequence[torch.Tensor],
    mapping: DeviceMapping,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
    *,
    asks: bool = True,
) -> WholeForm:
    """The tensor that the shards of all processes make up; the others are asked where these do not tell, if it `asks`."""
    mesh = mapping.mesh
    owned = residence(mesh).owned
    if len(shards) != len(owned):
        raise ValueError(
            f"from_local needs one shard per device of this process, {len(owned)} on the mesh {mesh}, but got {len(shards)}"
        )
    shapes = {slot: tuple(shard.shape) for slot, shard in zip(owned, shards, strict=True)}
    dtypes = {shard.dtype for shard in shards} | ({dtype} if dtype is not None else set())
    if asks and _must_ask(mesh, shape, dtype):
        shapes, dtypes = _asked(shapes, dtypes)
    if shapes and (world.current().is_fake or residence(mesh).on_paper):  # the others have what this one has
        shapes = dict.fromkeys(range(mesh.num_devices), next(iter(shapes.values()))) | shapes
    if len(dtypes) > 1:
        raise TypeError(f"from_local needs shards of one dtype, but got {', '.join(sorted(map(str, dtypes)))}")
    ranks = {len(each) for each in shapes.values()} | ({len(shape)} if shape is not None else set())
    if len(ranks) > 1:
        raise ValueError(f"from_local needs shards of one rank, but got {sorted(ranks)}")
    layout = mapping.layout(ranks.pop())
    whole = WholeForm(layout, tuple(shape) if shape is not None else _global_shape(shapes, layout), dtypes.pop())
    _check_shapes({slot: shapes[slot] for slot in owned}, whole)
    return whole


def _must_ask(mesh: DeviceMesh, shape: Sequence[int] | None, dtype: torch.dtype | None) -> bool:
    """Whether some process cannot tell from its own shards; every process finds the same."""
    here = world.current()
    if here.count == 1 or (shape is not None and dtype is not None):
        return False
    return shape is None or len(set(residence(mesh).owners)) < here.count


def _asked(
    shapes: Mapping[int, tuple[int, ...]], dtypes: set[torch.dtype]
) -> tuple[dict[int, tuple[int, ...]], set[torch.dtype]]:
    """The shapes of all shards, by slot, and all dtypes."""
    names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    everywhere: dict[int, tuple[int, ...]] = {}
    found: set[torch.dtype] = set()
    for theirs, known in gathered((list(shapes.items()), names), "from_local"):
        everywhere |= {slot: tuple(sizes) for slot, sizes in theirs}
        found |= {getattr(torch, name) for name in known}
    return everywhere, found


def _check_shapes(shapes: Mapping[int, tuple[int, ...]], whole: WholeForm) -> None:
    for slot, has in shapes.items():
        expected = box_shape(box(whole.layout, whole.shape, slot))
        if has != expected:
            raise ValueError(
                f"from_local: the shard of device {slot} has shape {has}, but a tensor of shape {whole.shape} in the layout {whole.layout} "
                f"gives it {expected} (splits are balanced, larger shards first): fix the shard, or give shape="
            )


def _global_shape(shapes: Mapping[int, tuple[int, ...]], layout: Layout) -> tuple[int, ...]:
    """Along each dim, the sum over the devices that split it, at coordinate 0 of all other axes."""
    sizes = []
    for dim, axes in enumerate(layout.splits):
        group = layout.mesh.groups(axes)[0] if axes else (0,)
        sizes.append(sum(shapes[slot][dim] for slot in group))
    return tuple(sizes)
