"""`SavePlan`: what is saved, where, and by whom."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed

import torch

from ..runtime.memory.headroom import Stretch, room_for
from ..runtime.memory.lazy_copy import is_shared_until_written, lazy_clone
from ..runtime.processes import world
from ..sharding.geometry import box_shape
from ..tensor.tensor import Tensor
from .files.head import METADATA
from .files.index import SavedShard, SavedTensor
from .shares import Share, identity, shares
from .tree import Node

__all__ = ["SavePlan", "copied_plan", "planned_save"]

_FILE_BYTES = 2 << 30
"""Shards go to a next file above this."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """What is saved, where, and by whom."""

    structure: Node
    tensors: Mapping[str, SavedTensor]
    """With the file and key of each shard (in the first process; the others know their own ones); where it begins there,
    and its checksums, who writes it will say."""
    own: Mapping[str, Mapping[str, torch.Tensor]]
    """The files of this process, and what goes into each."""
    loose: Container[tuple[str, str]] = ()
    """The files and keys of tensors that a program may let grow in place, which torch cannot do to memory that is shared."""
    on_their_way: tuple[torch.cuda.Event, ...] = ()
    """When these have happened, what comes from accelerators is here."""
    room: tuple[Stretch, ...] = ()
    """Where the program's copies of what it overwrites will lie; whoever has time may fault it in."""

    @property
    def nbytes(self) -> int:
        """How many bytes this process writes."""
        return sum(x.numel() * x.itemsize for content in self.own.values() for x in content.values())


def planned_save(
    structure: Node, ready: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor], token: str
) -> SavePlan:
    """Which shard goes to which file, under which key."""
    here = world.current().process
    filled: dict[int, tuple[int, int]] = {}
    own: dict[str, dict[str, torch.Tensor]] = {}
    loose: set[tuple[str, str]] = set()
    taken: dict[str, set[str]] = {}
    known: dict[object, SavedTensor] = {}
    same = {name: identity(x) for name, x in tensors.items()}

    def placed(name: str, x: torch.Tensor, share: Share) -> SavedShard:
        shape = box_shape(share.box)
        size = math.prod(shape) * x.dtype.itemsize
        number, before = filled.get(share.process, (0, 0))
        if before and before + size > _FILE_BYTES:
            number, before = number + 1, 0
        filled[share.process] = number, before + size
        file = f"tensors-{token}-{share.process:05d}-{number:05d}.safetensors"
        whole = shape == tuple(x.shape)
        key = name if whole else f"{name}[{', '.join(f'{start}:{stop}' for start, stop in share.box)}]"
        keys = taken.setdefault(file, {METADATA})
        while key in keys:  # {"x": x, "x[0:2]": y}
            key += "'"
        keys.add(key)
        if share.process == here:
            assert share.shard is not None
            own.setdefault(file, {})[key] = share.shard
            if not isinstance(tensors[name], (Tensor, torch.nn.Parameter)):
                loose.add((file, key))
        return SavedShard(file, key, share.box, 0)

    for name, found in shares(ready, tensors):
        x = ready[name]
        shards = tuple(placed(name, x, share) for share in found if here in (0, share.process))
        known[same[name]] = SavedTensor(tuple(x.shape), x.dtype, shards)
    return SavePlan(structure, {name: known[same[name]] for name in tensors}, own, loose)


def copied_plan(plan: SavePlan) -> SavePlan:
    """The plan with shards as they are now: on their way to pinned host memory if they are on accelerators, else shared until written to, or copied.

    The copies take their turn on the streams that the program uses, so that what it does next comes after them; it need not
    wait for them itself.
    """
    copies = {
        file: {key: _copy(x.detach(), may_grow=(file, key) in plan.loose) for key, x in content.items()}
        for file, content in plan.own.items()
    }
    devices = {x.device for content in plan.own.values() for x in content.values() if x.device.type == "cuda"}
    events = tuple(torch.cuda.current_stream(device).record_event() for device in devices)
    shared = (x for content in copies.values() for x in content.values() if is_shared_until_written(x))
    return changed(plan, own=copies, on_their_way=events, room=room_for(x.untyped_storage().nbytes() for x in shared))


def _copy(x: torch.Tensor, *, may_grow: bool) -> torch.Tensor:
    if x.device.type == "cpu":
        return x.clone() if may_grow else lazy_clone(x)
    host = torch.empty(x.shape, dtype=x.dtype, device="cpu", pin_memory=x.device.type == "cuda")
    return host.copy_(x, non_blocking=x.device.type == "cuda")
