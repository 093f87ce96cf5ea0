"""Steps that resolve or begin pending reductions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..sharding.geometry import box, piece, volume
from ..sharding.layout import Layout
from ..sharding.mesh import Slot
from ..sharding.placements import ReduceOp
from .boxes.census import Volume, axis_sizes, census
from .boxes.pieces import flat_index
from .reduction_owners import HeldRegion, Reduction, reduction
from .step import Begins, Bytes, Load, Transition, added_axes, changed_dims, common_prefix, live, live_pending

__all__ = ["AllReduce", "FillPartial", "ReduceExchange", "ReduceScatter", "Reduces"]


def _resolved(source: Layout, target: Layout) -> tuple[str, ...] | None:
    """The axes whose reductions are resolved, or `None` if that is not all that happens to reductions."""
    if source.mesh != target.mesh:
        return None
    before, after = dict(live_pending(source)), dict(live_pending(target))
    if not after.items() <= before.items():
        return None
    return tuple(axis for axis in before if axis not in after) or None


@final
@dataclass(frozen=True, slots=True)
class FillPartial(Begins):
    """Every device takes what it holds of its target box as its contribution to a pending reduction.

    Along axes that split the source, each device has a part of the value; along the others, the device at
    coordinate 0 keeps it (`keeps`), or all do if the reduction leaves equal values as they are. Everything else
    is the neutral element of `op`. Nothing is received.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ())), Layout(mesh, (("a",), ()), {"b": ReduceOp.SUM}), (8, 8), 4)
    >>> step.kind, step.op, [step.keeps(slot) for slot in range(4)]
    ('fill_partial', ReduceOp.SUM, [True, False, True, False])
    """

    kind = "fill_partial"

    @property
    def phases(self) -> int:
        return 0

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        axes = move.begun
        if not axes:
            return None
        replicated = {axis for axis in move.source.replicated_axes if axis not in axes}
        for held, wanted in zip(*move.splits, strict=True):
            common = common_prefix(held, wanted)
            if not set(held[common:]) <= set(axes) or not set(wanted[common:]) <= replicated:
                return None
        return axes

    @property
    def op(self) -> ReduceOp:
        """The reduction that begins to be pending."""
        op = self.neutral
        assert op is not None
        return op

    def keeps(self, slot: Slot) -> bool:
        """Whether a slot contributes what it holds, instead of neutral elements alone."""
        if self.op not in (ReduceOp.SUM, ReduceOp.PROD):
            return True
        mesh = self.source.mesh
        return not any(mesh.device_coord(slot, axis) for axis in self.axes if axis not in self.source.dim_of)

    def load(self) -> Load:
        return ()

    def _contributes_once(self, axis: str) -> bool:
        return axis in self.source.dim_of


@dataclass(frozen=True, slots=True)
class Reduces(Begins):
    """A step that resolves pending reductions."""

    @property
    def resolved(self) -> tuple[str, ...]:
        """The mesh axes whose reduction is resolved, in mesh order."""
        after = dict(live_pending(self.target))
        return tuple(axis for axis, _ in live_pending(self.source) if axis not in after)

    @property
    def op(self) -> ReduceOp:
        """How contributions are combined; a mean is a sum that is then divided by `divisor`."""
        pending = dict(self.source.pending)
        ops = {pending[axis] for axis in self.resolved}
        if not ops and self.neutral:
            return self.neutral
        return ReduceOp.AVG if ReduceOp.AVG in ops else next(iter(ops))

    @property
    def divisor(self) -> int:
        """What a sum of contributions is divided by."""
        pending, mesh = dict(self.source.pending), self.source.mesh
        return mesh.group_size(axis for axis in self.resolved if pending[axis] is ReduceOp.AVG)

    @property
    def contributions(self) -> int:
        """How many contributions each element has."""
        return self.source.mesh.group_size(self.resolved)


@final
@dataclass(frozen=True, slots=True)
class AllReduce(Reduces):
    """Every device of a group receives the reduction of what all of it hold.

    Each reduces one of as many balanced parts of the flat shard as there are devices, then receives the others.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ()), {"b": ReduceOp.SUM}), Layout(mesh, (("a",), ())), (8, 8), 4)
    >>> step.kind, step.axes, step.op, step.bytes_received.max
    ('all_reduce', ('b',), ReduceOp.SUM, 128)
    """

    kind = "all_reduce"

    @property
    def phases(self) -> int:
        return 2

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        axes = _resolved(move.source, move.target)
        before, after = move.splits
        return axes if before == after else None

    def load(self) -> Load:
        raise NotImplementedError("the parts of an all-reduce are no boxes; its bytes are counted directly")

    def received(self, slot: Slot) -> int:
        mesh = self.source.mesh
        sizes = [mesh.axis_size(axis) for axis in self.axes]
        index = flat_index(sizes, [mesh.device_coord(slot, axis) for axis in self.axes])
        return self._received(volume(box(self.source, self.shape, slot)), index)

    def received_everywhere(self) -> list[int]:
        return [self.received(slot) for slot in range(self.source.mesh.num_devices)]

    def _received(self, size: int, index: int) -> int:
        start, stop = piece(size, self.contributions, index)
        return ((self.contributions - 2) * (stop - start) + size) * self.itemsize

    def _bytes(self) -> Bytes:
        sizes = census(self.source.mesh, self.shape, [Volume(self.source)])
        total = sum(size * count for (size,), count in sizes.items())
        total = total // self.contributions * (self.contributions - 1) * 2 * self.itemsize
        return Bytes(self._received(max(size for (size,) in sizes), 0), total)


@final
@dataclass(frozen=True, slots=True)
class ReduceScatter(Reduces):
    """Every device of a group receives the reduction of its target box, a part of what all of it hold.

    Where the target is also split by axes that were replicated, what a group reduces is cut by these first.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ()), {"b": ReduceOp.SUM}), Layout(mesh, (("a",), ("b",))), (8, 8), 4)
    >>> step.kind, step.axes, step.dim, step.bytes_received.max
    ('reduce_scatter', ('b',), 1, 64)
    """

    kind = "reduce_scatter"

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        axes = _resolved(move.source, move.target)
        more = added_axes(*move.splits)
        if axes is None or more is None or not set(axes) <= set(more):
            return None
        return tuple(axis for axis in more if axis in axes)

    @property
    def dim(self) -> int | None:
        """The dim that is scattered, if it is one and cut by nothing but the group, else `None`."""
        dims = changed_dims(live(self.source), live(self.target))
        if len(dims) != 1:
            return None
        dim = dims[0]
        return dim if live(self.target)[dim] == live(self.source)[dim] + self.axes else None

    def load(self) -> Load:
        return ((self.contributions - 1, Volume(self.target)),)


@final
@dataclass(frozen=True, slots=True)
class ReduceExchange(Reduces):
    """Owners receive the contributions to their boxes, reduce them, and give the results to whoever lacks them.

    `owners` says who sends which box to whom in the two phases. Where the target begins a pending reduction,
    results are multiplied by `scale`, and what no owner gives to a device is the element `neutral` there.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"a": 2, "b": 2})
    >>> step = step_between(Layout(mesh, (("a",), ()), {"b": ReduceOp.SUM}), Layout(mesh, (("b",), ())), (8, 8), 4)
    >>> step.kind, [step.owners.owned(slot) for slot in (0, 1)]
    ('reduce_exchange', [(((0, 4), (0, 8)),), ()])
    """

    kind = "reduce_exchange"

    @property
    def phases(self) -> int:
        return 2 if self.owners.spreads else 1

    @classmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        source, target = move.source, move.target
        if source.mesh != target.mesh or not move.shape:
            return None
        kept = set(source.pending_axes) & set(target.pending_axes)
        sizes = axis_sizes(source.mesh)
        return tuple(axis for axis in source.mesh.axis_names if axis not in kept and sizes[axis] > 1)

    @property
    def owners(self) -> Reduction:
        """Who reduces which box, and the transfers to and from them."""
        return reduction(self.source, self.target, self.shape)

    def load(self) -> Load:
        of = self.owners
        collected = (of.contributions - 1, HeldRegion.owned(of)), (-1, HeldRegion.own_contribution(of))
        return (*collected, (1, HeldRegion.needed(of)))
