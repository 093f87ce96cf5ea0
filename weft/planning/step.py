"""`Step`: one movement between two layouts of a tensor; what all kinds of steps have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

from ..caches import cached
from ..errors import PlanError
from ..sharding.layout import Layout, Pending, Splits
from ..sharding.mesh import Slot
from ..sharding.placements import ReduceOp
from .boxes.census import Measure, Shape, axis_sizes, census, everywhere
from .staging.stages import Stages

__all__ = [
    "Begins",
    "Bytes",
    "Load",
    "Step",
    "Transition",
    "added_axes",
    "dual",
    "live",
    "live_pending",
    "removed_axes",
]

Load = tuple[tuple[int, Measure], ...]
"""What a device receives, in elements: a sum of measures, each taken so many times."""


@final
@dataclass(frozen=True, slots=True)
class Transition:
    """Two layouts of a tensor of one shape: what a step may lead between."""

    source: Layout
    target: Layout
    shape: Shape

    @property
    def stays_pending(self) -> bool:
        """Whether it is on one mesh and leaves pending reductions as they are."""
        source, target = self.source, self.target
        return source.mesh == target.mesh and live_pending(source) == live_pending(target)

    @property
    def begun(self) -> tuple[str, ...] | None:
        """The axes that begin a reduction, all of one kind, if that is all that happens to reductions, else `None`."""
        if self.source.mesh != self.target.mesh:
            return None
        before, after = dict(live_pending(self.source)), dict(live_pending(self.target))
        if not before.items() <= after.items():
            return None
        axes = tuple(axis for axis in after if axis not in before)
        return axes if len({after[axis] for axis in axes}) <= 1 else None

    @property
    def splits(self) -> tuple[Splits, Splits]:
        """The splits before and after, without mesh axes of size 1."""
        return live(self.source), live(self.target)


@final
@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes on the device that has the most, and on all devices together.

    >>> Bytes(max=32, total=64)
    Bytes(max=32, total=64)
    """

    max: int
    total: int


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One movement from a layout to another of a tensor of this shape and itemsize, within groups along `axes`.

    >>> from weft.planning import step_between
    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> step = step_between(Layout(mesh, (("tp",),)), Layout(mesh, ((),)), (8,), 4)
    >>> step.kind, step.axes, step.received(0), step.transpose().kind
    ('all_gather', ('tp',), 24, 'reduce_scatter')
    """

    source: Layout
    target: Layout
    axes: tuple[str, ...]
    shape: Shape
    itemsize: int
    bytes_received: Bytes = field(init=False)
    stages: Stages | None = field(default=None, kw_only=True)
    """Through which cells it goes; None: straight."""

    kind: ClassVar[str]
    """The snake-case name of the kind."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes_received", self._bytes())

    @property
    def phases(self) -> int:
        """How many times devices wait for each other."""
        return 1

    @property
    def described(self) -> str:
        """The kind, and through what it goes."""
        return self.kind if self.stages is None else f"{self.kind}, {self.stages.name}"

    @classmethod
    @abstractmethod
    def group(cls, move: Transition) -> tuple[str, ...] | None:
        """The mesh axes of the groups if the transition is exactly of this kind, else `None`."""

    @abstractmethod
    def load(self) -> Load:
        """What a device receives, as measures."""

    def received(self, slot: Slot) -> int:
        """The bytes that a slot of the target's mesh receives."""
        coords = self.target.mesh.coords(slot)
        elements = sum(times * measure.at(self.shape, coords) for times, measure in self.load())
        return elements * self.itemsize

    def received_everywhere(self) -> list[int]:
        """The bytes that each slot of the target's mesh receives."""
        total = [0] * self.target.mesh.num_devices
        for times, measure in self.load():
            values = everywhere(self.target.mesh, self.shape, measure)
            total = [have + times * value * self.itemsize for have, value in zip(total, values, strict=True)]
        return total

    def transpose(self) -> Step:
        """The step from the dual of the target to the dual of the source: what this one does to gradients."""
        return step_between(dual(self.target), dual(self.source), self.shape, self.itemsize)

    def to_dict(self) -> dict[str, object]:
        """The step in words and numbers that JSON has."""
        staged = {} if self.stages is None else {"stages": self.stages.name}
        return {
            "kind": self.kind,
            **staged,
            "axes": list(self.axes),
            "source": str(self.source),
            "target": str(self.target),
            "bytes_received": {"max": self.bytes_received.max, "total": self.bytes_received.total},
        }

    def _bytes(self) -> Bytes:
        return bytes_of(self.target, self.shape, self.itemsize, self.load())


@cached(4096)
def bytes_of(layout: Layout, shape: Shape, itemsize: int, load: Load) -> Bytes:
    """The most that a slot of the layout's mesh receives under a load, and what all receive."""
    if not load:
        return Bytes(0, 0)
    most = total = 0
    factors = [factor for factor, _ in load]
    for values, count in census(layout.mesh, shape, [measure for _, measure in load]).items():
        received = sum(factor * value for factor, value in zip(factors, values, strict=True))
        most = max(most, received)
        total += received * count
    return Bytes(most * itemsize, total * itemsize)


_kinds: list[type[Step]] = []
"""Bound: the kinds of steps that there are. Cleared: never."""


def register(*kinds: type[Step]) -> None:
    """Adds kinds to those that `step_between` tries, in order."""
    _kinds.extend(kinds)


def step_between(source: Layout, target: Layout, shape: Shape, itemsize: int) -> Step:
    """The one step that leads from a layout to another, named by the first kind that it is exactly.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"tp": 4})
    >>> step_between(Layout(mesh, (("tp",), ())), Layout(mesh, ((), ("tp",))), (8, 8), 4).kind
    'all_to_all'
    """
    move = Transition(source, target, shape)
    for kind in _kinds:
        axes = kind.group(move)
        if axes is not None:
            return kind(source, target, axes, shape, itemsize)
    raise PlanError(f"no single step leads from {source} on {source.mesh} to {target} on {target.mesh}: plan several")


@dataclass(frozen=True, slots=True)
class Begins(Step):
    """A step after which reductions may be pending that were not: devices hold contributions, else neutral elements."""

    @property
    def begun(self) -> tuple[str, ...]:
        """The mesh axes that begin a reduction, in mesh order."""
        before = dict(live_pending(self.source))
        return tuple(axis for axis, _ in live_pending(self.target) if axis not in before)

    @property
    def neutral(self) -> ReduceOp | None:
        """The reduction whose neutral element fills what a device does not contribute to, if one begins."""
        begun = self.begun
        return next((op for axis, op in self.target.pending if axis in begun), None)

    @property
    def scale(self) -> int:
        """What contributions are multiplied by, so that a pending mean over several devices gives them back."""
        if self.neutral is not ReduceOp.AVG:
            return 1
        sizes = axis_sizes(self.target.mesh)
        return math.prod(sizes[axis] for axis in self.begun if self._contributes_once(axis))

    def _contributes_once(self, axis: str) -> bool:
        """Whether an element has one contribution along an axis that begins a reduction."""
        return axis in self.source.mesh.index_of


@cached(4096)
def dual(layout: Layout) -> Layout:
    """The layout of the gradient: replicated axes hold a pending sum, axes with a pending sum are replicated.

    >>> from weft.sharding.mesh import make_mesh
    >>> str(dual(Layout(make_mesh({"dp": 2, "tp": 4}), (("dp",),))))
    '(dp) sum@tp'
    """
    for axis, op in layout.pending:
        if op is not ReduceOp.SUM:
            raise PlanError(
                f"a pending {op} over mesh axis {axis!r} has no transpose, because it is not linear: "
                "reduce it first (all_reduce), which has a gradient of its own"
            )
    return Layout(layout.mesh, layout.splits, [(axis, ReduceOp.SUM) for axis in layout.replicated_axes])


@cached(8192)
def live(layout: Layout) -> Splits:
    """The splits without mesh axes of size 1, which cut nothing."""
    sizes = axis_sizes(layout.mesh)
    if 1 not in layout.mesh.mesh_shape:
        return layout.splits
    return tuple(tuple(axis for axis in axes if sizes[axis] > 1) for axes in layout.splits)


@cached(8192)
def live_pending(layout: Layout) -> Pending:
    """The pending reductions without mesh axes of size 1, which have nothing to reduce."""
    sizes = axis_sizes(layout.mesh)
    return tuple((axis, op) for axis, op in layout.pending if sizes[axis] > 1)


def added_axes(before: Splits, after: Splits) -> tuple[str, ...] | None:
    """The axes by which one cuts finer than the other, dim after dim, or `None` if it does not only cut finer.

    >>> added_axes((("a",), ()), (("a", "b"), ("c",)))
    ('b', 'c')
    """
    more: list[str] = []
    for old, new in zip(before, after, strict=True):
        if old != new[: len(old)]:
            return None
        more.extend(new[len(old) :])
    return tuple(more)


def removed_axes(before: Splits, after: Splits) -> tuple[str, ...] | None:
    """The axes by which one cuts coarser than the other, or `None` if it does not only cut coarser."""
    return added_axes(after, before)


def common_prefix(first: Sequence[str], second: Sequence[str]) -> int:
    """How many axes, major first, two splits of a dim have in common.

    >>> common_prefix(("a", "b"), ("a", "c", "b"))
    1
    """
    count = 0
    for x, y in zip(first, second, strict=False):
        if x != y:
            break
        count += 1
    return count


def changed_dims(before: Splits, after: Splits) -> Sequence[int]:
    """The dims that are split differently."""
    return [dim for dim, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
