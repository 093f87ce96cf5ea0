"""Which process writes which shard: each distinct shard once, by the holder that has written least; all find the same answer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..caches import cached
from ..engine.moves.movement import moved
from ..engine.views.copy_views import current
from ..runtime.holding import holding
from ..runtime.machine import forget_with_residences, residence
from ..runtime.processes import world
from ..sharding.geometry import Box, box_at, box_shape, holders, whole_box
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from ..tensor.tensor import Tensor
from .deferred import Deferred
from .errors import CheckpointError
from .files.head import has_form, storable

__all__ = ["Share", "check_dense", "check_has_values", "check_storable", "has_memory", "identity", "settled", "shares"]

_wraps_others: Callable[[torch.Tensor], bool] = is_traceable_wrapper_subclass


@dataclass(frozen=True, slots=True)
class Share:
    """One shard of a tensor: its box, who writes it, and what it is where that is this process."""

    box: Box
    process: int
    shard: torch.Tensor | None

    @property
    def own(self) -> torch.Tensor:
        """The shard, which this process writes."""
        assert self.shard is not None
        return self.shard


def settled(x: torch.Tensor) -> torch.Tensor:
    """The tensor with nothing pending; a new one has no graph."""
    if isinstance(x, Deferred) or (isinstance(x, Tensor) and not x._layout.pending):
        return x
    x = x.detach()
    return moved(x, x._layout.resolved, "checkpoint") if isinstance(x, Tensor) else x


def check_has_values(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises for a tensor that has a shape, but no value."""
    for name, x in tensors.items():
        if x.is_meta:
            raise CheckpointError(
                f"{name!r} is on the meta device and has no value to save: initialise the module first (weft.nn.shard_module), "
                "or ask what saving it would take (weft.checkpoint.plan_save)"
            )
        if not has_memory(x):
            raise CheckpointError(
                f"{name!r} has no memory, as a fake tensor has none or one that wraps others (it is a {type(x).__name__}), and no "
                "value to save: give the plain tensor that it stands for, such as full_tensor() of a DTensor, or leave it out"
            )


def has_memory(x: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own, or is one of ours.

    >>> has_memory(torch.ones(2)), has_memory(torch.ones(2, device="meta"))
    (True, False)
    """
    if isinstance(x, (Deferred, Tensor)):
        return True
    if x.is_meta or _wraps_others(x):
        return False
    return x.device.type != "cpu" or not x.numel() or bool(torch._C._data_address(x))  # type: ignore[attr-defined]


def check_dense(tensors: Mapping[str, torch.Tensor], files: str) -> None:
    """Raises for a tensor that is no block of elements, or not yet, or of a dtype that no checkpoint has a form for."""
    for name, x in tensors.items():
        if is_lazy(x):
            raise CheckpointError(
                f"{name!r} has no shape and no value yet: call the module once first, on any input, or leave it out"
            )
        if x.is_nested or x.layout != torch.strided:
            raise _no_form(name, "nested" if x.is_nested else x.layout, files)
        if not has_form(x.dtype):
            raise _no_form(name, x.dtype, files)


def _no_form(name: str, what: object, files: str, instead: str = "convert it, or leave it out") -> CheckpointError:
    return CheckpointError(f"{name!r} is {what}, which {files} have no form for: {instead}")


def check_storable(tensors: Mapping[str, torch.Tensor], *, plain: bool) -> None:
    """Raises for a tensor whose dtype, kind or name files have no form for: plain ones, or those beside an index."""
    files = "safetensors files"
    check_dense(tensors, files)
    for name, x in tensors.items():
        if plain and not storable(x.dtype):
            raise _no_form(
                name, x.dtype, files, "save to a directory with weft.checkpoint.save, convert it, or leave it out"
            )
        if not name.isascii() and re.search("[\ud800-\udfff]", name):
            raise CheckpointError(f"{name!r} is no text that files can hold, it has a half of a character: rename it")


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
        for home in _distinct(x):
            process = min(home.slots, key=lambda each: (written[each], each))
            written[process] += home.numel * x.dtype.itemsize
            found.append(Share(home.box, process, _held(x, home.slots[process])))
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


def _distinct(x: torch.Tensor) -> tuple[_ShardHome, ...]:
    """Each shard of a tensor once."""
    if not x.numel():
        return ()
    if isinstance(x, Tensor):
        return _homes(x._layout, tuple(x.shape))
    return (_ShardHome(whole_box(x.shape), x.numel(), {0: 0}),)


def _held(x: torch.Tensor, slot: Slot) -> torch.Tensor | None:
    """What a slot holds of a tensor; None if it is another process's."""
    if not isinstance(x, Tensor):
        return x
    here, pieces = holding(x._layout), current(x)
    if slot not in here.piece_of:
        return None
    whole = here.shaped_whole(pieces)  # stored whole, so saved whole
    return here.shard(pieces, x.shape, slot) if whole is None else whole


@dataclass(frozen=True, slots=True)
class _ShardHome:
    """A distinct shard: its box, how many elements it has, and where it is, the first slot in each process that holds it."""

    box: Box
    numel: int
    slots: Mapping[int, Slot]


@cached(64, cleared_by=forget_with_residences)
def _homes(layout: Layout, shape: tuple[int, ...]) -> tuple[_ShardHome, ...]:
    """The distinct shards of a tensor; the same for all tensors of one layout and shape, of which models have few kinds."""
    owners = residence(layout.mesh).owners
    found: list[_ShardHome] = []
    for slot, box in _first_holders(layout, shape):
        numel = math.prod(box_shape(box))
        if numel:
            slots: dict[int, Slot] = {}
            for other in holders(layout, slot):
                slots.setdefault(owners[other], other)
            found.append(_ShardHome(box, numel, slots))
    return tuple(found)


def _first_holders(layout: Layout, shape: tuple[int, ...]) -> Iterator[tuple[Slot, Box]]:
    """For each distinct shard, the first slot that holds it; the coordinates of other axes are 0."""
    here, whole = holding(layout), whole_box(shape)
    if here.count and here.box(0, shape) == whole:  # one piece is all there is
        yield here.slots[0], whole
        return
    sizes = layout.mesh.mesh_shape
    axes = [
        range(size) if axis in layout.dim_of else range(1)
        for axis, size in zip(layout.mesh.axis_names, sizes, strict=True)
    ]
    for coords in product(*axes):
        yield layout.mesh.slot(coords), box_at(layout, shape, coords)
