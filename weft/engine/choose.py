"""The chooser: rules propose, cost prices, this chooses in which layouts an op computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..planning import move_cost
from ..rules.factors import Dims, Factors
from ..runtime.traced import hinted
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp
from .strategy import OPERATIONS_PER_SECOND, BroughtTensor, consider, is_considered

__all__ = ["Choice", "Input", "choose", "stop_over"]

Price = Callable[[Layout, Layout, tuple[int, ...], int], float]
"""The seconds from one layout to another of a tensor of this shape and item size."""
_MOST_CANDIDATES = 6
_FOR_ONE_OP = 2.0
"""How much dearer it is to bring an input for one op alone."""


@dataclass(frozen=True, slots=True)
class Input:
    """What the chooser sees of a tensor: where it is, how large, and whether it must stay."""

    layout: Layout | None
    """None: a plain tensor, whole wherever it is needed."""
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class Choice:
    """In which layouts an op takes its inputs and leaves its outputs."""

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


def choose(
    factors: Factors,
    inputs: Sequence[Input],
    mesh: DeviceMesh,
    out_itemsize: int,
    pinned: int | None = None,
    move: Price = move_cost,
) -> Choice:
    """The cheapest choice; ties go to the one that splits more, then to the order of the inputs.

    `pinned`: the input that must stay as it is, because it is written to. `move`: what movements take.
    """
    layouts = [_on(mesh, given.layout, len(given.shape)) for given in inputs]
    proposals = [
        _Proposal(factors, layouts, mesh, order, keep) for order, keep in _orders(factors, layouts, inputs, pinned)
    ]
    choices = [proposal.choice() for proposal in proposals]
    may_be = [
        k
        for k, choice in enumerate(choices)
        if pinned is None or choice.inputs[pinned] is layouts[pinned] is choice.outputs[0]
    ]
    if not may_be:
        return choices[-1]
    prices = {k: _price(choices[k], factors, inputs, out_itemsize, proposals[k], move) for k in may_be}
    best = min(may_be, key=prices.__getitem__)
    if is_considered():
        different = [k for i, k in enumerate(may_be) if choices[k] not in [choices[j] for j in may_be[:i]]]
        rows = [(str(proposals[k]), prices[k][0], _bytes(choices[k], inputs)) for k in different]
        consider(rows, next(i for i, k in enumerate(different) if choices[k] == choices[best]))
    return choices[best]


def _on(mesh: DeviceMesh, layout: Layout | None, rank: int) -> Layout:
    """A layout as far as it can be kept on this mesh: tensors from elsewhere come in whole."""
    if layout is None or layout.mesh != mesh:
        return Layout.replicated(mesh, rank)
    return layout


def _orders(
    factors: Factors, layouts: Sequence[Layout], inputs: Sequence[Input], pinned: int | None
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """In which order the inputs say how the factors are split, and whether pending sums stay pending."""
    laid = [i for i, layout in enumerate(layouts) if layout.split_axes]
    firsts: list[int | None] = list(laid[:_MOST_CANDIDATES]) or [None]
    if pinned is not None:
        firsts = [pinned]
    by_size = sorted(range(len(inputs)), key=lambda i: -math.prod(inputs[i].shape))
    pending = any(layout.pending for layout in layouts) and factors.linear != "no"
    for first in firsts:
        order = tuple(by_size) if first is None else (first, *(i for i in by_size if i != first))
        for keep in (True, False) if pending else (False,):
            yield order, keep


def stop_over(source: Layout, need: Layout) -> Layout | None:
    """The layout to resolve a pending reduction in first, where it cannot turn into the pending one that is needed."""
    kinds = {op for _, op in source.pending}
    return source.resolved if kinds and need.pending and kinds != {op for _, op in need.pending} else None


class _Proposal:
    """One way to split an op's factors over the mesh."""

    def __init__(
        self, factors: Factors, layouts: Sequence[Layout], mesh: DeviceMesh, order: tuple[int, ...], keep: bool
    ) -> None:
        self.factors, self.layouts, self.mesh = factors, layouts, mesh
        self.pending: dict[str, ReduceOp] = {}
        self.carriers: dict[str, frozenset[int]] = {}
        """For each axis that stays pending, the inputs that are pending along it."""
        self.axes: dict[str, tuple[str, ...]] = {}
        if keep:
            self._keep_pending()
        for i in order:
            self._follow(i)
        self._mend_groups()

    def _keep_pending(self) -> None:
        factors = self.factors
        inputs = [i for i in range(len(self.layouts)) if factors.linear == "all" or i not in factors.added]
        for i in [factors.linear] if isinstance(factors.linear, int) else inputs:
            for axis, op in self.layouts[i].pending:
                if op in factors.keeps and axis not in self.pending and set(self.pending.values()) <= {op}:
                    carriers = self._carriers(axis, i)
                    if carriers is not None:
                        self.pending[axis], self.carriers[axis] = op, carriers

    def _carriers(self, axis: str, i: int) -> frozenset[int] | None:
        """Which inputs must be pending along an axis for its sum to pass, or None when it cannot."""
        if self.factors.linear == "all":
            return frozenset(range(len(self.layouts)))
        others = [j for j, layout in enumerate(self.layouts) if j != i and axis in layout.pending_axes]
        if any(j not in self.factors.added for j in others):
            return None
        return frozenset({i}) | self.factors.added

    def _follow(self, i: int) -> None:
        """Splits factors the way input `i` is split, where they are free."""
        for dim, axes in zip(self.factors.inputs[i], self.layouts[i].splits, strict=True):
            left = [axis for axis in axes if axis not in self._used()]
            for position, factor in enumerate(dim):
                if not left:
                    break
                size = self.factors.sizes.get(factor, 1)
                if size == 1 and len(dim) > 1:
                    continue
                if factor in self.axes or not self._may_split(factor):
                    break
                minor = math.prod(self.factors.sizes.get(f, 1) for f in dim[position + 1 :])
                taken = _taken(left, size, self.mesh, even=minor > 1)
                self.axes[factor] = tuple(taken)
                left = left[len(taken) :]
                if self.mesh.group_size(taken) != size:
                    break

    def _may_split(self, factor: str) -> bool:
        factors = self.factors
        if factor in factors.whole:
            return False
        lacking = factors.lacking(factor)
        if not lacking:
            return True
        if factors.reduces is None or set(self.pending.values()) - {factors.reduces}:
            return False
        return factors.partial_outputs is None or lacking <= factors.partial_outputs

    def _used(self) -> set[str]:
        return {axis for axes in self.axes.values() for axis in axes} | set(self.pending)

    def _mend_groups(self) -> None:
        """Unsplits minor factors of a dim whose major factor is not split down to single elements, and uneven majors.

        One that is unsplit for a dim of the result may be the major one of an input's: (3, 8) as (6, 4) is (a)(b c) as (a b)(c).
        """
        groups = [dim for dims in (*self.factors.inputs, *self.factors.outputs) for dim in dims or () if len(dim) > 1]
        while sum(map(self._unsplit, groups)):
            pass

    def _unsplit(self, dim: tuple[str, ...]) -> int:
        """Unsplits the factors of a dim that no layout of it can say; how many there were."""
        found, open_ = 0, True
        for position, factor in enumerate(dim):
            size = self.factors.sizes.get(factor, 1)
            count = self.mesh.group_size(self.axes.get(factor, ()))
            minor = math.prod(self.factors.sizes.get(f, 1) for f in dim[position + 1 :])
            reduced = not self.factors.on_output(factor)
            if count > 1 and (not open_ or (minor > 1 and size % count) or reduced):
                self.axes[factor] = ()
                found, count = found + 1, 1
            open_ = open_ and count == size
        return found

    def _layout(self, dims: Dims, pending: dict[str, ReduceOp]) -> Layout:
        return Layout(self.mesh, [sum((self.axes.get(f, ()) for f in dim), ()) for dim in dims], pending)

    def choice(self) -> Choice:
        """The layouts that follow from the split."""
        factors = self.factors
        leaves = [dict(self.pending) for _ in factors.outputs]
        reduced: dict[str, ReduceOp] = {}
        if factors.reduces is not None:
            for factor, axes in self.axes.items():
                lost = dict.fromkeys(axes, factors.reduces)
                for k in factors.lacking(factor):
                    leaves[k] |= lost
                    reduced |= lost
        inputs = []
        for i, dims in enumerate(factors.inputs):
            own = {axis: op for axis, op in self.pending.items() if i in self.carriers[axis]}
            if i in factors.added:
                own |= reduced
            inputs.append(self._layout(dims, own))
        outputs = [
            Layout.replicated(self.mesh, 0) if dims is None else self._layout(dims, pending)
            for dims, pending in zip(factors.outputs, leaves, strict=True)
        ]
        return Choice(tuple(inputs), tuple(outputs))

    def __str__(self) -> str:
        split = [f"{factor} over {'·'.join(axes)}" for factor, axes in sorted(self.axes.items()) if axes]
        kept = [f"{op} over {axis} stays pending" for axis, op in self.pending.items()]
        return ", ".join(split + kept) or "everything on every device"

    @property
    def parallel(self) -> int:
        """Over how many devices the work is split."""
        return self.mesh.group_size(axis for axes in self.axes.values() for axis in axes)


def _taken(axes: Sequence[str], size: int, mesh: DeviceMesh, *, even: bool) -> list[str]:
    """The leading axes that can split a factor: all, or where the cut must be even, those that divide it."""
    if not even:
        return list(axes)
    taken: list[str] = []
    count = 1
    for axis in axes:
        count *= mesh.axis_size(axis)
        if size % count:
            break
        taken.append(axis)
    return taken


def _bytes(choice: Choice, inputs: Sequence[Input]) -> int:
    """What the busiest device receives of the inputs."""
    moves = [
        BroughtTensor(given.layout, need, given.shape, given.itemsize)
        for given, need in zip(inputs, choice.inputs, strict=True)
        if given.layout is not None and given.layout is not need and stop_over(given.layout, need) is None
    ]
    return sum(move.bytes for move in moves)


def _price(
    choice: Choice, factors: Factors, inputs: Sequence[Input], out_itemsize: int, proposal: _Proposal, move: Price
) -> tuple[float, float]:
    """Seconds to bring the inputs, to compute, and to resolve what is left pending; then less parallel is dearer."""
    seconds = 0.0
    for given, need in zip(inputs, choice.inputs, strict=True):
        if given.layout is not None and given.layout is not need:
            middle = stop_over(given.layout, need)
            if middle is not None:
                seconds += move(given.layout, middle, given.shape, given.itemsize)
            bring = move(middle or given.layout, need, given.shape, given.itemsize)
            # A sum that is resolved serves the ops after this one too; what is gathered to keep it pending does not.
            seconds += _FOR_ONE_OP * bring if proposal.pending and not given.layout.pending else bring
    for dims, layout in zip(factors.outputs, choice.outputs, strict=True):
        if dims is not None and layout.pending:
            shape = hinted(math.prod(factors.sizes.get(f, 1) for f in dim) for dim in dims)
            seconds += move(layout, layout.resolved, shape, out_itemsize)
    work = 2.0 * math.prod(hinted(factors.sizes.values()))
    return seconds + work / proposal.parallel / OPERATIONS_PER_SECOND, -proposal.parallel
