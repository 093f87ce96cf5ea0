"""The search for steps: which intermediate layouts lead from one layout to another with the fewest bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter

from ..errors import PlanError
from ..sharding.layout import Layout
from ..sharding.placements import ReduceOp
from .across.reduce_across import ReduceAcross
from .boxes.census import Shape, axis_sizes
from .boxes.crossing import received_bytes
from .costs.bounds import kept_choices, total_bound
from .costs.cost import DEFAULT, staged, step_time
from .moving_steps import AllGather, AllToAll, Exchange, LocalSlice, Permute
from .reducing_steps import AllReduce, FillPartial, ReduceExchange
from .reduction_kinds import check_kinds
from .step import Bytes, Step, Transition, live, live_pending
from .steps import step_between
from .topology import Topology
from .topology.topology import is_flat

__all__ = ["find_steps"]

Steps = tuple[Step, ...]
ROUGHLY = 1.05
"""How much more the busiest device may receive in native steps, which are quicker than boxes one by one."""


def find_steps(
    source: Layout,
    target: Layout,
    shape: Shape,
    itemsize: int,
    bound: Bytes,
    topology: Topology = DEFAULT,
    *,
    frugal: bool = False,
) -> Steps:
    """The steps from one layout to another: fewest bytes first, then least time; `frugal`: nothing held in between."""
    if source is target:
        return ()
    search = Search(shape, itemsize, bound, topology)
    steps = search.directly(source, target) if frugal else search.steps(source, target)
    if is_flat(topology, source.mesh, target.mesh):
        return steps
    choices = [steps] if frugal else [steps, *search.others(source, target)]
    totals = [sum(step.bytes_received.total for step in choice) for choice in choices]
    # From mesh to mesh a detour may cross slow links less often; on one mesh, staging sees to that.
    least = totals[0] if source.mesh == target.mesh else max(totals)
    return min((search.staged(choice, least) for choice in choices), key=itemgetter(0))[1]


class Search:
    """A search for steps of one tensor's movements."""

    def __init__(self, shape: Shape, itemsize: int, bound: Bytes, topology: Topology) -> None:
        self.shape, self.itemsize, self.bound, self.topology = shape, itemsize, bound, topology

    def steps(self, source: Layout, target: Layout) -> Steps:
        """The steps between any two layouts."""
        check_kinds(source, target)
        if source.mesh != target.mesh:
            return self._across(source, target)
        if live_pending(source) == live_pending(target) and not live_pending(source):
            return self._moved(source, target)
        return self._reduced(source, target)

    def directly(self, source: Layout, target: Layout) -> Steps:
        """One step that writes straight into the target, where there is one."""
        check_kinds(source, target)
        try:
            return self.one(source, target)
        except PlanError:
            return self.steps(source, target)

    def others(self, source: Layout, target: Layout) -> Iterator[Steps]:
        """Other steps that may move as little: which of them is fastest depends on where the slow links are."""
        if source.mesh != target.mesh:
            if live_pending(source) or live_pending(target):
                yield from self._resolved_here(source, target)
            return
        with suppress(PlanError):  # there is not always one step
            yield self.one(source, target)
        before, after = set(live_pending(source)), set(live_pending(target))
        if len({op for _, op in before | after}) > 1:
            return
        middles = [*self._all_scattered(source), *self._cut_apart(source, target)]
        if self.shape and after < before:
            scattered = self._scattered(source, target)
            middles += [] if scattered is None else [scattered]
        for middle in dict.fromkeys(middles):
            cut = _cut_before_reducing(source, middle)
            yield *self.one(source, cut), *self.one(cut, middle), *self._begun(middle, target)
        if not self.shape or not before | after:
            return
        for kept in kept_choices(source, target):
            begun = [(axis, op) for axis, op in live_pending(target) if axis not in kept]
            for middle in self._split_choices(source, target, begun) if begun else ():
                yield *self._resolved(source, middle), *self._filled(middle, target, begun)

    def staged(self, steps: Steps, least: int) -> tuple[tuple[bool, float], Steps]:
        """The steps in the form that is fastest, and what they cost: no more than `least` bytes, then seconds."""
        found = tuple(staged(step, self.topology) for step in steps)
        seconds = sum(step_time(step, self.topology) for step in found)
        return (sum(step.bytes_received.total for step in found) > least, seconds), found

    def best(self, choices: Iterable[Steps]) -> Steps:
        """The choice that moves least, then waits least on the device that receives most, then has fewest phases.

        None is better than one that reaches the lower bound on every device.
        """
        prices: list[tuple[tuple[float, ...], int, Steps]] = []
        for number, steps in enumerate(choices):
            received = [step.bytes_received for step in steps]
            if sum(b.max for b in received) <= self.bound.max and sum(b.total for b in received) <= self.bound.total:
                return steps
            prices.append((self._price(steps), number, steps))
        return min(prices)[2]

    def _price(self, steps: Steps) -> tuple[float, ...]:
        slowest = sum(step_time(staged(step, self.topology), self.topology) for step in steps)
        return sum(step.bytes_received.total for step in steps), slowest, sum(step.phases for step in steps)

    def one(self, source: Layout, target: Layout) -> Steps:
        """One step between two layouts, or none where they are the same."""
        return () if source is target else (step_between(source, target, self.shape, self.itemsize),)

    def _moved(self, source: Layout, target: Layout) -> Steps:
        """Nothing is reduced: one native collective, perhaps after a local cut, else the exchange."""
        for kind in (LocalSlice, AllGather, Permute, AllToAll):
            axes = kind.group(Transition(source, target, self.shape))
            if axes is not None:
                return (kind(source, target, axes, self.shape, self.itemsize),)
        cut = _cut_towards(source, target)
        if cut is not source:
            for kind in (AllGather, Permute, AllToAll):
                axes = kind.group(Transition(cut, target, self.shape))
                if axes is not None:
                    return (*self.one(source, cut), kind(cut, target, axes, self.shape, self.itemsize))
        return self._exchanged(source, target)

    def _exchanged(self, source: Layout, target: Layout) -> Steps:
        axes = Exchange.group(Transition(source, target, self.shape))
        assert axes is not None, (source, target)
        return (Exchange(source, target, axes, self.shape, self.itemsize, self.topology),)

    def _reduced(self, source: Layout, target: Layout) -> Steps:
        """Pending reductions are resolved, kept or begun; where that moves less, they are resolved and begun again."""
        kept = self._kept(source, target)
        before = dict(live_pending(source))
        again = [(axis, op) for axis, op in live_pending(target) if axis in before and axis not in kept]
        if not again:
            return self._begun(source, target)
        middles = self._split_choices(source, target, again)
        return self.best((*self._begun(source, m), *self._filled(m, target, again)) for m in middles)

    def _begun(self, source: Layout, target: Layout) -> Steps:
        """Pending reductions are resolved, kept or begun."""
        before = dict(live_pending(source))
        begun = [(axis, op) for axis, op in live_pending(target) if axis not in before]
        if not begun:
            return self._resolved(source, target)
        if FillPartial.group(Transition(source, target, self.shape)) is not None:
            return self.one(source, target)
        if not self.shape or len({op for _, op in begun}) > 1:
            middle = Layout(target.mesh, target.splits, [item for item in target.pending if item not in begun])
            return (*self._resolved(source, middle), *self._filled(middle, target, begun))
        if len(live_pending(target)) < len(before) + len(begun):
            middles = self._split_choices(source, target, begun)
            scattered = ((*self._resolved(source, m), *self._filled(m, target, begun)) for m in middles)
            return self.best(chain(scattered, (self._owned(source, target) for _ in range(1))))
        cuts = self._split_choices(source, source, [item for item in begun if item[0] not in source.dim_of])
        return self.best((*self.one(source, cut), *self._exchanged(cut, target)) for cut in cuts)

    def _kept(self, source: Layout, target: Layout) -> tuple[str, ...]:
        """The reductions, pending before and after, whose contributions are moved as they are."""
        choices = list(kept_choices(source, target))
        if len(choices) == 1 or not self.shape or len({op for _, op in (*source.pending, *target.pending)}) > 1:
            return choices[0]
        return min(choices, key=lambda kept: total_bound(source, target, self.shape, kept))

    def _resolved(self, source: Layout, target: Layout) -> Steps:
        """Pending reductions are resolved or kept; none begins."""
        if live_pending(source) == live_pending(target):
            return self._moved(source, target)
        axes = AllReduce.group(Transition(source, target, self.shape))
        if axes is not None and self._one_all_reduce(source, axes):
            return self.one(source, target)
        middle = self._scattered(source, target)
        if middle is None or not self.shape:
            return self._owned(source, target)
        cut = _cut_before_reducing(source, middle)
        return (*self.one(source, cut), *self.one(cut, middle), *self.one(middle, target))

    def _owned(self, source: Layout, target: Layout) -> Steps:
        axes = ReduceExchange.group(Transition(source, target, self.shape))
        if axes:
            return (ReduceExchange(source, target, axes, self.shape, self.itemsize),)
        reduced = Layout(source.mesh, source.splits, target.pending)
        return (*self.one(source, reduced), *self.one(reduced, target))

    def _one_all_reduce(self, source: Layout, axes: Sequence[str]) -> bool:
        """Whether no replicas repeat each other's work in one all-reduce, or sharing it would not save a byte."""
        sizes = axis_sizes(source.mesh)
        replicas = any(sizes[axis] > 1 for axis in source.replicated_axes)
        return not replicas or math.prod(self.shape) == 1 or math.prod(sizes[axis] for axis in axes) == 2

    def _scattered(self, source: Layout, target: Layout) -> Layout | None:
        """The layout in which every element is reduced once, where the source holds it and the target wants it."""
        sizes = axis_sizes(source.mesh)
        free = {a for a in (*source.replicated_axes, *source.pending_axes) if sizes[a] > 1} - set(target.pending_axes)
        splits: list[tuple[str, ...]] = []
        for held, wanted in zip(live(source), live(target), strict=True):
            if wanted == held[: len(wanted)]:
                splits.append(held)
            elif held == wanted[: len(held)] and free.issuperset(wanted[len(held) :]):
                splits.append(wanted)
            else:
                return None
        used = {axis for axes in splits for axis in axes}
        left = [axis for axis in source.mesh.axis_names if axis in free and axis not in used]
        left.sort(key=lambda axis: axis in source.pending_axes)
        for axis in left:
            if not splits:
                return None
            dim = self._roomiest(source, splits, axis)
            splits[dim] = (*splits[dim], axis)
        return Layout(source.mesh, splits, target.pending)

    def _roomiest(self, source: Layout, splits: Sequence[tuple[str, ...]], axis: str) -> int:
        """The dim that an axis cuts best: evenly, before what is reduced is cut, and into pieces that lie in one stretch."""
        sizes = axis_sizes(source.mesh)
        replicated = axis in source.replicated_axes

        def room(dim: int) -> tuple[bool, bool, int]:
            local = self.shape[dim] // math.prod(sizes[a] for a in splits[dim])
            after_reduced = replicated and any(a in source.pending_axes for a in splits[dim])
            evenly = local > 0 and local % sizes[axis] == 0
            return evenly, not after_reduced, -dim if evenly else local

        return max(range(len(splits)), key=room)

    def _split_choices(self, source: Layout, layout: Layout, axes: Sequence[tuple[str, ReduceOp]]) -> list[Layout]:
        """Layouts in which some axes split a dim instead of holding a pending reduction or replicas."""
        if not axes:
            return [layout]
        names = tuple(axis for axis, _ in axes)
        unsplit = Layout(layout.mesh, layout.splits, [item for item in layout.pending if item not in axes])
        each = [unsplit.with_split(dim, (*layout.splits[dim], *names)) for dim in range(len(self.shape))]
        return list(dict.fromkeys([self._split_by(source, layout, axes), *each]))

    def _split_by(self, source: Layout, layout: Layout, axes: Sequence[tuple[str, ReduceOp]]) -> Layout:
        """A layout in which some axes split a dim instead of holding a pending reduction or replicas."""
        splits = list(layout.splits)
        for axis, _ in axes:
            dim = self._roomiest(source, splits, axis)
            splits[dim] = (*splits[dim], axis)
        return Layout(layout.mesh, splits, [item for item in layout.pending if item not in axes])

    def _filled(self, source: Layout, target: Layout, begun: Sequence[tuple[str, ReduceOp]]) -> Steps:
        """One step for each kind of reduction that begins; a factor of 1 must not turn into a summand."""
        steps: list[Step] = []
        order = sorted({op for _, op in begun}, key=lambda op: op is not ReduceOp.PROD)
        for op in order:
            pending = dict(source.pending) | {axis: kind for axis, kind in begun if kind is op}
            middle = Layout(source.mesh, target.splits if op is order[-1] else source.splits, pending)
            steps.extend(self.one(source, middle))
            source = middle
        return (*steps, *self.one(source, target))

    def _across(self, source: Layout, target: Layout) -> Steps:
        """Between meshes: at once, unless native steps bring no device much more."""
        choices = self._resolved_here(source, target)
        axes = ReduceAcross.group(Transition(source, target, self.shape))
        if axes is None:
            return self.best(choices)
        across = (ReduceAcross(source, target, axes, self.shape, self.itemsize, self.topology),)
        least = across[0].bytes_received
        for steps in choices:
            received = received_bytes(steps, target, self.shape, self.itemsize)
            if received.total <= least.total and received.max <= ROUGHLY * least.max:
                return steps
        return across

    def _resolved_here(self, source: Layout, target: Layout) -> list[Steps]:
        """Between meshes: reduce where the contributions are, move, begin reductions where the result goes."""
        resolved = source.resolved
        begun = live_pending(target)
        shared = begun if self.shape and len({op for _, op in begun}) == 1 else ()
        arrival = self._split_by(target.resolved, target, shared).resolved
        ending = self._filled(arrival, target, begun) if begun else self.one(arrival, target)
        if not live_pending(source):
            return [(*self.one(source, resolved), *self._exchanged(resolved, arrival), *ending)]
        choices = []
        for scattered in self._all_scattered(source):
            cut = _cut_before_reducing(source, scattered)
            steps = (*self.one(source, cut), *self.one(cut, scattered))
            choices.append((*steps, *self._exchanged(scattered, arrival), *ending))
        if not choices:
            choices.append((*self.one(source, resolved), *self._exchanged(resolved, arrival), *ending))
        return choices

    def _cut_apart(self, source: Layout, target: Layout) -> Iterator[Layout]:
        """The source, cut locally by axes that split only the target: one for each dim to cut."""
        free = [axis for axis in source.replicated_axes if axis in target.dim_of]
        for dim in range(len(self.shape)) if free else ():
            yield source.with_split(dim, (*source.splits[dim], *free))

    def _all_scattered(self, source: Layout) -> Iterator[Layout]:
        """Layouts on the source's mesh in which every element is reduced once: one for each dim to cut."""
        sizes = axis_sizes(source.mesh)
        free = [axis for axis in (*source.replicated_axes, *source.pending_axes) if sizes[axis] > 1]
        for dim in range(len(self.shape)):
            yield source.resolved.with_split(dim, (*source.splits[dim], *free))


def _cut_towards(source: Layout, target: Layout) -> Layout:
    """The source, cut locally where the target only cuts a dim finer by axes that were replicated."""
    free = set(source.replicated_axes)
    splits = [
        wanted if held == wanted[: len(held)] and free.issuperset(wanted[len(held) :]) else held
        for held, wanted in zip(source.splits, target.splits, strict=True)
    ]
    return Layout(source.mesh, splits, source.pending)


def _cut_before_reducing(source: Layout, target: Layout) -> Layout:
    """The source, cut locally by replicated axes that come before those that are reduced."""
    free = set(source.replicated_axes)
    splits = []
    for held, wanted in zip(live(source), live(target), strict=True):
        end = len(held)
        while end < len(wanted) and wanted[end] in free:
            end += 1
        splits.append(wanted[:end])
    return Layout(source.mesh, splits, source.pending)
