"""`Owners`: who reduces what in a step, and between which slots contributions and results travel."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..caches import cached
from ..sharding.geometry import Box, box, box_shape, piece, slots_at
from ..sharding.mesh import Slot
from .boxes.transfers import Transfer
from .reducing_steps import AllReduce, ReduceExchange, ReduceScatter

__all__ = ["Owners", "Reducing", "owners_of_step"]

Reducing = AllReduce | ReduceScatter | ReduceExchange

SMALL = 4096
"""Bytes of a shard up to which every device reduces all of it, instead of waiting a second time for the others' parts."""
SMALL_PAIR = 1 << 20
"""The same for two devices, which receive as much of each other's shard as of two parts, but reduce twice as much."""


@dataclass(frozen=True, slots=True)
class Owners(ABC):
    """Who reduces what in a step."""

    step: Reducing

    flat = False
    """Whether boxes are stretches of the flat shard instead of boxes of the tensor."""
    spreads = False
    """Whether results are passed on; if not, each owner's one result is its new shard."""

    @property
    def bundles(self) -> bool:
        """Whether a process reduces its contributions before it sends them: not where replicas must come out alike."""
        step = self.step
        twice = set(step.source.replicated_axes) & set(step.target.replicated_axes)
        return self.spreads or not any(step.source.mesh.axis_size(axis) > 1 for axis in twice)

    @abstractmethod
    def collects(self, slot: Slot) -> Sequence[Transfer]:
        """The contributions to what a slot reduces, its own included, box by box."""

    @abstractmethod
    def contributes(self, slot: Slot) -> Sequence[Transfer]:
        """What a slot gives to owners."""

    def takes(self, slot: Slot) -> Sequence[Transfer]:  # noqa: ARG002 - those that spread use it
        """The results that a slot receives from owners."""
        return ()

    def gives(self, slot: Slot) -> Sequence[Transfer]:  # noqa: ARG002 - those that spread use it
        """The results that an owner gives."""
        return ()

    def group(self, slot: Slot) -> list[Slot]:
        """The slots whose contributions are reduced together with this slot's, in mesh order."""
        mesh = self.step.source.mesh
        free = {mesh.index_of[axis] for axis in self.step.resolved}
        return list(slots_at(mesh, {i: at for i, at in enumerate(mesh.coords(slot)) if i not in free}))


@final
@dataclass(frozen=True, slots=True)
class EachItsShard(Owners):
    """Every slot reduces what it holds afterwards: a reduce-scatter, or a small all-reduce."""

    def collects(self, slot: Slot) -> Sequence[Transfer]:
        where = box(self.step.target, self.step.shape, slot)
        return [Transfer(member, slot, where) for member in self.group(slot)]

    def contributes(self, slot: Slot) -> Sequence[Transfer]:
        target, shape = self.step.target, self.step.shape
        return [Transfer(slot, member, box(target, shape, member)) for member in self.group(slot)]


@final
@dataclass(frozen=True, slots=True)
class EachAStretch(Owners):
    """The slots of a group share the flat shard among them: a large all-reduce."""

    flat = True
    spreads = True

    def _stretch(self, slot: Slot, owner: Slot) -> Box:
        members = self.group(slot)
        size = math.prod(box_shape(box(self.step.source, self.step.shape, slot)))
        return (piece(size, len(members), members.index(owner)),)

    def collects(self, slot: Slot) -> Sequence[Transfer]:
        return [Transfer(member, slot, self._stretch(slot, slot)) for member in self.group(slot)]

    def contributes(self, slot: Slot) -> Sequence[Transfer]:
        return [Transfer(slot, member, self._stretch(slot, member)) for member in self.group(slot)]

    def takes(self, slot: Slot) -> Sequence[Transfer]:
        return [Transfer(member, slot, self._stretch(slot, member)) for member in self.group(slot)]

    def gives(self, slot: Slot) -> Sequence[Transfer]:
        return [Transfer(slot, member, self._stretch(slot, slot)) for member in self.group(slot)]


@final
@dataclass(frozen=True, slots=True)
class PlannedOwners(Owners):
    """The owners that the planner chose."""

    step: ReduceExchange

    spreads = True

    def collects(self, slot: Slot) -> Sequence[Transfer]:
        return self.step.owners.collects(slot)

    def contributes(self, slot: Slot) -> Sequence[Transfer]:
        return self.step.owners.contributes(slot)

    def takes(self, slot: Slot) -> Sequence[Transfer]:
        return self.step.owners.takes(slot)

    def gives(self, slot: Slot) -> Sequence[Transfer]:
        return self.step.owners.gives(slot)


@cached(8192)
def owners_of_step(step: Reducing, *, crowded: bool) -> Owners:
    """Who reduces what in a step; `crowded` says whether some process has several devices of the mesh."""
    if isinstance(step, ReduceExchange):
        return PlannedOwners(step)
    if isinstance(step, ReduceScatter):
        return EachItsShard(step)
    if step.stages is not None:
        return EachAStretch(step)
    sizes = step.source.mesh.shape
    # What a process reduces before it sends it depends on which devices it has; replicas must come out alike.
    replicas = crowded and any(sizes[axis] > 1 for axis in step.source.replicated_axes)
    count = math.prod(sizes[axis] for axis in step.source.split_axes)
    limit = SMALL_PAIR if step.contributions == 2 else SMALL
    small = math.prod(step.shape) * step.itemsize <= limit * count
    return EachItsShard(step) if replicas or small else EachAStretch(step)
