"""Which process writes which shard: each distinct shard once, by the holder that has written least; all find the same answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import torch

from ..engine.moves.movement import moved
from ..engine.views.copy_views import current
from ..runtime.holding import holding
from ..runtime.machine import residence
from ..runtime.processes import world
from ..sharding.geometry import Box, box_at, box_shape, holders
from ..sharding.layout import Layout
from ..tensor.tensor import Tensor
from .errors import CheckpointError
from .files.head import storable

__all__ = ["Share", "check_storable", "identity", "settled", "shares"]


@dataclass(frozen=True, slots=True)
class Share:
    """One shard of a tensor: its box, who writes it, and what it is where that is this process."""

    box: Box
    process: int
    shard: torch.Tensor | None


def settled(x: torch.Tensor) -> torch.Tensor:
    """The tensor without a graph, and with nothing pending."""
    x = x.detach()
    if x.is_meta:
        raise CheckpointError(
            "a tensor on the meta device has no value to save: initialise the module first (weft.nn.shard_module), "
            "or ask what saving it would take (weft.checkpoint.plan_save)"
        )
    return moved(x, x._layout.resolved, "checkpoint") if isinstance(x, Tensor) and x._layout.pending else x


def check_storable(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises for a tensor whose dtype, or kind, files have no form for."""
    for name, x in tensors.items():
        if not storable(x.dtype) or x.layout != torch.strided:
            what = x.dtype if x.layout == torch.strided else x.layout
            raise CheckpointError(
                f"{name!r} is {what}, which safetensors files have no form for: convert it, or leave it out"
            )


def shares(tensors: Mapping[str, torch.Tensor], kept: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, list[Share]]]:
    """For each tensor, its shards; one that is the same as an earlier one (as `kept` says, before it settled) has none."""
    written: Counter[int] = Counter()
    known: set[object] = set()
    for name, x in tensors.items():
        same = identity(kept[name])
        if same in known:
            continue
        known.add(same)
        found: list[Share] = []
        for box, held in _distinct(x):
            process = min(held, key=lambda each: (written[each], each))
            written[process] += math.prod(box_shape(box)) * x.dtype.itemsize
            found.append(Share(box, process, held[process]))
        yield name, found


def identity(x: torch.Tensor) -> object:
    """Equal for tensors that are one value, such as tied parameters, and in all processes for the same ones.

    Memory tells more, but only of the tensors that this process has some of.
    """
    pieces = x._value.pieces if isinstance(x, Tensor) else (x,)
    if world.current().count > 1 or not x.numel() or not pieces:
        return id(x)
    layout = x._layout if isinstance(x, Tensor) else None
    return layout, x.dtype, *((p.untyped_storage()._cdata, p.storage_offset(), p.shape, p.stride()) for p in pieces)


def _distinct(x: torch.Tensor) -> Iterator[tuple[Box, dict[int, torch.Tensor | None]]]:
    """Each shard once: its box, and the processes that hold it, with what it is where that is this process."""
    whole = tuple((0, size) for size in x.shape)
    if not x.numel():
        return
    if not isinstance(x, Tensor):
        yield whole, {0: x}
        return
    layout, here = x._layout, holding(x._layout)
    owners, memories = residence(layout.mesh).owners, residence(layout.mesh).memories
    if len(set(memories)) == 1:  # stored whole, so saved whole
        yield whole, {owners[0]: current(x)[0] if x._value.pieces else None}
        return
    for slot, box in _first_holders(layout, tuple(x.shape)):
        if all(box_shape(box)):
            held: dict[int, torch.Tensor | None] = {}
            for other in holders(layout, slot):
                held.setdefault(
                    owners[other], here.shard(current(x), x.shape, other) if other in here.piece_of else None
                )
            yield box, held


def _first_holders(layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[int, Box]]:
    """For each distinct shard, the first slot that holds it; the coordinates of other axes are 0."""
    sizes = layout.mesh.mesh_shape
    axes = [
        range(size) if axis in layout.dim_of else range(1)
        for axis, size in zip(layout.mesh.axis_names, sizes, strict=True)
    ]
    for coords in product(*axes):
        yield layout.mesh.slot(coords), box_at(layout, shape, coords)
