"""Steps that move boxes and reduce nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..caches import cached
from ..sharding.geometry import box
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from .boxes.census import HeldOverlap, Volume, axis_sizes, spread_index
from .boxes.crossing import crossing
from .boxes.pieces import cuts, flat_index
from .boxes.transfers import SameMesh, Transfer, routes
from .reduction_owners import HeldRegion, reduction
from .step import (
    Begins,
    Bytes,
    Load,
    Step,
    Transition,
    added_axes,
    bytes_of,
    changed_dims,
    common_prefix,
    live,
    removed_axes,
)
from .topology import Topology

__all__ = ["AllGather", "AllToAll", "Exchange", "LocalSlice", "Moves", "Permute"]


@dataclass(frozen=True, slots=True)
class Moves(Step):
    """A step that moves boxes, and neither resolves nor begins a reduction."""

    def receives(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes that make up what a slot of the target's mesh holds afterwards, those that it keeps among them."""
        return routes(self.source, self.target, self.shape).receives(slot)

    def sends(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes that a slot of the source's mesh gives, to itself too."""
        return routes(self.source, self.target, self.shape).sends(slot)

    def load(self) -> Load:
        return (1, Volume(self.target)), (-1, HeldOverlap(self.source, self.target))


@final
@dataclass(frozen=True, slots=True)
class LocalSlice(Moves):
    """Every device keeps a part of what it holds; nothing is received.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ())), Layout(mesh, (("a",), ("b",))), (8, 8), 4)
    >>> step.kind, step.axes, step.bytes_received.max
    ('local_slice', ('b',), 0)
    """

    kind = "local_slice"

    @property
    def phases(self) -> int:
        return 0

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        return added_axes(*move.splits) if move.stays_pending else None

    def load(self) -> Load:
        return ()


@final
@dataclass(frozen=True, slots=True)
class AllGather(Moves):
    """Every device of a group receives what the others hold, of one dim or of several at once.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ("b",))), Layout(mesh, (("a",), ())), (8, 8), 4)
    >>> step.kind, step.axes, step.dim, step.bytes_received.max
    ('all_gather', ('b',), 1, 64)
    """

    kind = "all_gather"

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        return removed_axes(*move.splits) if move.stays_pending else None

    @property
    def dim(self) -> int | None:
        """The dim that is gathered, or `None` when there are several."""
        dims = changed_dims(live(self.source), live(self.target))
        return dims[0] if len(dims) == 1 else None


@final
@dataclass(frozen=True, slots=True)
class Permute(Moves):
    """Every device receives the whole shard of one other device, and gives its own to one.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a", "b"), ())), Layout(mesh, (("b", "a"), ())), (8, 8), 4)
    >>> step.kind, [step.source_of(slot) for slot in range(4)]
    ('permute', [0, 2, 1, 3])
    """

    kind = "permute"

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        if not move.stays_pending or not _same_cuts(move):
            return None
        return _permuted(move.source, move.target)

    def source_of(self, slot: Slot) -> Slot:
        """The slot whose shard this slot receives.

        >>> from weft.sharding.mesh import make_mesh
        >>> mesh = make_mesh({"a": 2, "b": 2})
        >>> step = Permute(Layout(mesh, (("a", "b"),)), Layout(mesh, (("b", "a"),)), ("a", "b"), (8,), 4)
        >>> [step.source_of(slot) for slot in range(4)]
        [0, 2, 1, 3]
        """
        return _origin(self.source, self.target, slot)

    def target_of(self, slot: Slot) -> Slot:
        """The slot that receives this slot's shard."""
        return _origin(self.target, self.source, slot)

    def receives(self, slot: Slot) -> tuple[Transfer, ...]:
        return (Transfer(self.source_of(slot), slot, box(self.target, self.shape, slot)),)

    def sends(self, slot: Slot) -> tuple[Transfer, ...]:
        to = self.target_of(slot)
        return (Transfer(slot, to, box(self.target, self.shape, to)),)


@final
@dataclass(frozen=True, slots=True)
class AllToAll(Moves):
    """Every device of a group gives each other one an equal part of what it holds, so that other dims are split.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("b",), ())), Layout(mesh, ((), ("b",))), (8, 8), 4)
    >>> step.kind, step.axes
    ('all_to_all', ('b',))
    """

    kind = "all_to_all"

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        if not move.stays_pending:
            return None
        gone: list[str] = []
        come: list[str] = []
        for old, new in zip(*move.splits, strict=True):
            if old == new[: len(old)]:
                come.extend(new[len(old) :])
            elif new == old[: len(new)]:
                gone.extend(old[len(new) :])
            else:
                return None
        return tuple(gone) if set(gone) == set(come) else None


@final
@dataclass(frozen=True, slots=True)
class Exchange(Begins):
    """Every device receives exactly the boxes that it lacks, each from a near holder.

    Where the target begins a pending reduction along axes that split the source, a device receives what devices
    at its own coordinates of these axes hold, times `scale`, and has the element `neutral` elsewhere.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ())), Layout(mesh, (("b", "a"), ())), (8, 8), 4)
    >>> step.kind, [(t.source_slot, t.box) for t in step.receives(1)]
    ('exchange', [(2, ((4, 6), (0, 8)))])
    """

    topology: Topology | None = None
    """What says which holders are near."""

    kind = "exchange"

    def receives(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes that make up what a slot of the target's mesh holds afterwards."""
        return routes(self.source, self.target, self.shape, self.topology).receives(slot)

    def sends(self, slot: Slot) -> tuple[Transfer, ...]:
        """The boxes that a slot of the source's mesh gives."""
        return routes(self.source, self.target, self.shape, self.topology).sends(slot)

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        source, target = move.source, move.target
        if source.mesh != target.mesh:
            return None if source.pending or target.pending else ()
        begun = move.begun
        if begun is None or not set(begun) <= source.dim_of.keys():
            return None
        moving: set[str] = set()
        for old, new in zip(*move.splits, strict=True):
            moving.update(old[common_prefix(old, new) :])
        moving.difference_update(begun)
        found = routes(source, target, move.shape)
        if isinstance(found, SameMesh):
            moving.update(source.mesh.axis_names[i] for i in found.rotated)
        return tuple(axis for axis in source.mesh.axis_names if axis in moving)

    def load(self) -> Load:
        kept = -1, HeldOverlap(self.source, self.target)
        if self.begun:
            return (1, HeldRegion.needed(reduction(self.source, self.target, self.shape))), kept
        return (1, Volume(self.target)), kept

    def received(self, slot: Slot) -> int:
        if self.source.mesh == self.target.mesh:
            return Begins.received(self, slot)
        return crossing(self.source, self.target, self.shape)[slot] * self.itemsize

    def received_everywhere(self) -> list[int]:
        if self.source.mesh == self.target.mesh:
            return Begins.received_everywhere(self)
        return [elements * self.itemsize for elements in crossing(self.source, self.target, self.shape)]

    def _bytes(self) -> Bytes:
        if self.source.mesh == self.target.mesh:
            return bytes_of(self.target, self.shape, self.itemsize, self.load())
        each = crossing(self.source, self.target, self.shape)
        return Bytes(max(each) * self.itemsize, sum(each) * self.itemsize)


def _same_cuts(move: Transition) -> bool:
    """Whether every dim is cut at the same places."""
    sizes = axis_sizes(move.source.mesh)
    for size, old, new in zip(move.shape, *move.splits, strict=True):
        before, after = tuple(sizes[axis] for axis in old), tuple(sizes[axis] for axis in new)
        if before != after and cuts(size, before) != cuts(size, after):
            return False
    return True


@cached(1024)
def _permuted(source: Layout, target: Layout) -> tuple[str, ...] | None:
    """The axes along which whole shards change places, or `None` where a device would receive what it holds."""
    mesh = source.mesh
    if any(axis_sizes(mesh)[axis] > 1 for axis in source.replicated_axes) and _receives_what_it_holds(source, target):
        return None
    moving = {axis for axes in (*live(source), *live(target)) for axis in axes}
    for old, new in zip(live(source), live(target), strict=True):
        moving.difference_update(old[: common_prefix(old, new)])
    return tuple(axis for axis in mesh.axis_names if axis in moving)


def _receives_what_it_holds(source: Layout, target: Layout) -> bool:
    """Whether some device would get from another what it holds itself, as one of several holders."""
    sizes = axis_sizes(source.mesh)
    kept = [True] * source.mesh.num_devices
    origin = [0] * source.mesh.num_devices
    for old, new in _role_changes(source, target):
        wanted = spread_index(sizes, new)
        held, places = spread_index(sizes, old), _offsets(source, old)
        if old in source.splits:
            kept = [keep and x == y for keep, x, y in zip(kept, held, wanted, strict=True)]
        origin = [slot + places[y] - places[x] for slot, x, y in zip(origin, held, wanted, strict=True)]
    return any(keep and move for keep, move in zip(kept, origin, strict=True))


def _role_changes(source: Layout, target: Layout) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Axes that number pieces or replicas before, and those that number the same afterwards."""
    names = source.mesh.axis_names
    old_free = tuple(axis for axis in names if axis not in source.dim_of and axis in target.dim_of)
    new_free = tuple(axis for axis in names if axis not in target.dim_of and axis in source.dim_of)
    return [*zip(source.splits, target.splits, strict=True), (old_free, new_free)]


def _offsets(layout: Layout, axes: tuple[str, ...]) -> list[int]:
    """How far from the first slot the coordinates along some axes are, in row-major order of these."""
    offsets = [0]
    for axis in axes:
        step = layout.mesh.strides[layout.mesh.index_of[axis]]
        offsets = [start + step * i for start in offsets for i in range(layout.mesh.axis_size(axis))]
    return offsets


def _origin(source: Layout, target: Layout, slot: Slot) -> Slot:
    """The slot that holds in the source what a slot holds in the target, one to one over all slots."""
    mesh = source.mesh
    sizes = axis_sizes(mesh)
    at = dict(zip(mesh.axis_names, mesh.coords(slot), strict=True))
    found = dict(at)
    for old, new in _role_changes(source, target):
        index = flat_index([sizes[axis] for axis in new], [at[axis] for axis in new])
        for axis in reversed(old):
            index, found[axis] = divmod(index, sizes[axis])
    return mesh.slot(list(found.values()))
