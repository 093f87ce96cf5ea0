"""`LayoutModel`: the layouts of a program as a problem: one variable for each op, parameter, input, and value of several users.

    op               its way
    parameter, input the layout in which it stays
    value            of several users: the layout to which it is brought once for all of them, and the one in which their
                     gradients are added up

Prices of pairs are movements: of a value to where it is needed, and of its gradient back. Layers that repeat share their
variables, and their prices count as often as there are layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import ReduceOp
from .alike_layers import repeats_of
from .boundaries import ModuleBoundaries
from .layouts import candidate_layouts
from .obeying import Asked
from .prices import Prices
from .problem import Assignment, Problem, Table
from .program import RecordedOp, RecordedProgram, RecordedValue
from .trials import Trials
from .ways import OpWay, ways_of

__all__ = ["Landing", "LayoutModel"]


_NEVER = 1e6
"""Seconds that make a choice impossible, but leave prices numbers."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a value comes to lie for its users, and in which layout their gradients are added up."""

    layout: Layout
    gradient: Layout


@final
class LayoutModel:
    """A program on a mesh, as a problem, and which variable stands for what."""

    def __init__(self, program: RecordedProgram, mesh: DeviceMesh, prices: Prices, fixed: Mapping[int, Layout]) -> None:
        self.program, self.mesh, self.prices = program, mesh, prices
        self.problem = Problem()
        self.repeats = repeats_of(program)
        self.ways: dict[int, list[OpWay]] = {}
        """Of the ops that stand for others."""
        self.layouts: dict[int, list[Layout]] = {}
        """Of parameters and inputs."""
        self.landings: dict[int, list[Landing]] = {}
        """Of values that several ops take."""
        self.op_variables: dict[int, int] = {}
        self.layout_variables: dict[int, int] = {}
        self.landing_variables: dict[int, int] = {}
        self._fixed = fixed
        self._refusals: dict[tuple[object, ...], dict[Layout, list[float]]] = {}
        self._moved: dict[tuple[object, ...], Table] = {}
        self._kept = {self.repeats.values[value.number] for value in program.values if prices.is_kept(value)}
        self._add_parameters()
        self._add_landings()
        self._add_ops()
        self._add_movements()

    def working(self, choice: Assignment) -> int:
        """What the op that needs most holds for a moment."""
        return max(
            (
                self.prices.working_bytes(self.program.ops[number], self.ways[number][choice[variable]])
                for number, variable in self.op_variables.items()
            ),
            default=0,
        )

    def moved(self, variable: int, choice: Assignment) -> float:
        """What movements to and from a variable take in a choice."""
        pairs = self.problem.pairs.items()
        return float(sum(table[choice[i], choice[j]] for (i, j), table in pairs if variable in (i, j)))

    def _add_parameters(self) -> None:
        values = self.program.values
        counts = Counter(self.repeats.values[value.number] for value in values if value.kind in ("parameter", "input"))
        for number, count in counts.items():
            value = values[number]
            laid = self._fixed.get(number)
            is_parameter = value.kind == "parameter"
            layouts = candidate_layouts(self.mesh, value.shape, ordered=is_parameter) if laid is None else [laid]
            price = self.prices.update if is_parameter else self.prices.reading
            seconds = [count * price(layout, value) for layout in layouts]
            held = [count * self.prices.parameter_bytes(layout, value) for layout in layouts]
            self.layouts[number] = layouts
            self.layout_variables[number] = self.problem.variable(seconds, held)

    def _add_ops(self) -> None:
        values = self.program.values
        known: dict[object, list[OpWay]] = {}
        trials = Trials(self.prices)
        for number, count in Counter(self.repeats.ops).items():
            op = self.program.ops[number]
            ranks = tuple(len(values[v].shape) for v in op.inputs), tuple(len(values[v].shape) for v in op.outputs)
            key = (op.signature, ranks, tuple(values[v].shape for v in op.inputs) if op.factors is None else ())
            if key not in known:
                known[key] = trials.of(op, ways_of(self.mesh, op.factors, ranks))
            ways = self.ways[number] = known[key]
            seconds = [count * self.prices.op(op, way) for way in ways]
            held = [count * self._kept_by(op, way) for way in ways]
            self.op_variables[number] = self.problem.variable(seconds, held)

    def _kept_by(self, op: RecordedOp, way: OpWay) -> int:
        """What is kept of values that only this op takes."""
        numbers = [self.repeats.values[number] for number in op.inputs]
        return sum(
            self.prices.held(layout, self.program.values[number])
            for layout, number in zip(way.inputs, numbers, strict=True)
            if number in self._kept and number not in self.landings
        )

    def _add_landings(self) -> None:
        values = self.program.values
        shared = [v.number for v in values if len(v.users) > 1 and v.kind in ("activation", "parameter")]
        for number, count in Counter(self.repeats.values[each] for each in shared).items():
            value = values[number]
            landings = [
                Landing(layout, gradient)
                for layout in candidate_layouts(self.mesh, value.shape, ordered=value.kind == "parameter")
                for gradient in (_gradients(layout) if value.needs_grad else (layout,))
            ]
            if value.kind == "activation":  # sums may be left to each of those that take them
                landings += [
                    Landing(pending, pending.resolved)
                    for layout in candidate_layouts(self.mesh, value.shape)
                    for pending in _gradients(layout)[1:]
                ]
            kept = count if number in self._kept else 0
            held = [kept * self.prices.held(landing.layout, value) for landing in landings]
            self.landings[number] = landings
            self.landing_variables[number] = self.problem.variable([0.0] * len(landings), held)

    def _add_movements(self) -> None:
        ops, values, first = self.program.ops, self.program.values, self.repeats
        modules = ModuleBoundaries(self.program)
        edges: Counter[tuple[int, int, int, bool]] = Counter()
        arrivals: Counter[tuple[int, bool]] = Counter()
        for value in values:
            if value.kind == "constant":
                continue
            source = first.values[value.number]
            lands = source in self.landings
            for user, at in value.users:
                can_be_told = not lands and modules.can_be_brought_for(value, ops[user])
                edges[source, first.ops[user], at, can_be_told] += 1
            if lands:
                arrivals[source, modules.can_be_brought(value)] += 1
        for (source, user, at, can_be_told), count in edges.items():
            self._add_use(values[source], ops[user], at, count, can_be_told)
        for (source, can_be_told), count in arrivals.items():
            self._add_arrival(values[source], count, can_be_told)

    def _add_use(self, value: RecordedValue, op: RecordedOp, at: int, count: int, can_be_told: bool) -> None:
        """What an op takes from where a value lies, or has come to lie."""
        needs = [(way.inputs[at], way.gradients[at]) for way in self.ways[op.number]]
        landings = self.landings.get(value.number)
        if landings is not None:
            variable = self.landing_variables[value.number]
            sources = [(landing.layout, landing.gradient) for landing in landings]
        else:
            variable, sources = self._sources(value)
        again = 2 if self._comes_again(value, op, at) else 1
        table = self._movements(value, sources, needs, again)
        if not can_be_told:
            table = table + self._refused(value, op, at, [layout for layout, _ in sources])
        self.problem.couple(variable, self.op_variables[op.number], count * table)

    def _refused(self, value: RecordedValue, op: RecordedOp, at: int, layouts: list[Layout]) -> Table:
        """A price that nobody pays, where an op left to itself would not compute in a way for a layout of an input."""
        ways, known = self.ways[op.number], op.factors
        if known is None or known.added_up or known.passed:
            return np.zeros((len(layouts), len(ways)))
        values = [self.program.values[number] for number in op.inputs]
        others = [each for k, each in enumerate(values) if k != at]
        if value.kind == "activation" and (value.is_weight or any(_is_passing(each) for each in others)):
            # Where several tensors are not where they are needed, nobody knows which of them the op follows.
            stays = [[layout.splits == way.inputs[at].splits for way in ways] for layout in layouts]
            return np.where(stays, 0.0, _NEVER)
        given = tuple((each.shape, each.dtype.itemsize) for each in values)
        backwards = value.is_weight and known.factors.linear == "each" and any(each.needs_grad for each in others)
        rows = list(dict.fromkeys(layouts))
        key = (op.signature, at, backwards, given, tuple(rows))
        found = self._refusals.get(key)
        if found is None:
            asked = Asked(known.factors, at, given, self.prices.machine.topology, backwards)
            found = {layout: [0.0 if asked.follows(way, layout) else _NEVER for way in ways] for layout in rows}
            self._refusals[key] = found
        return np.array([found[layout] for layout in layouts])

    def _add_arrival(self, value: RecordedValue, count: int, can_be_told: bool) -> None:
        variable, sources = self._sources(value)
        needs = [(landing.layout, landing.gradient) for landing in self.landings[value.number]]
        table = self._movements(value, sources, needs, 1)
        if not can_be_told:
            stays = [[made.splits == need.splits for need, _ in needs] for made, _ in sources]
            table = table + np.where(stays, 0.0, _NEVER)
        self.problem.couple(variable, self.landing_variables[value.number], count * table)

    def _sources(self, value: RecordedValue) -> tuple[int, list[tuple[Layout, Layout]]]:
        """The variable that says where a value is made, and for each choice its layout and that of its gradient."""
        if value.number in self.layouts:
            layouts = self.layouts[value.number]
            return self.layout_variables[value.number], [(layout, layout) for layout in layouts]
        assert value.producer is not None
        number = self.repeats.ops[value.producer]
        made = [way.outputs[value.output] for way in self.ways[number]]
        return self.op_variables[number], [(layout, layout.resolved) for layout in made]

    def _comes_again(self, value: RecordedValue, op: RecordedOp, at: int) -> bool:
        """Whether a value that an op brings for itself comes twice: the backward pass needs what was not kept."""
        is_brought_by_op = value.is_weight or value.number in self.landings
        return is_brought_by_op and self.prices.keeps(op, at)

    def _movements(
        self,
        value: RecordedValue,
        sources: list[tuple[Layout, Layout]],
        needs: list[tuple[Layout, Layout]],
        times: int,
    ) -> Table:
        """The seconds of each pair of choices: there, and for the gradient back."""
        ways_there = [source for source, _ in sources], [need for need, _ in needs]
        table = times * self._table(value, *ways_there)
        if value.needs_grad:
            back = self._table(value, [given for _, given in needs], [wanted for _, wanted in sources])
            table = table + back.T
        return table

    def _table(self, value: RecordedValue, sources: list[Layout], targets: list[Layout]) -> Table:
        rows, columns = list(dict.fromkeys(sources)), list(dict.fromkeys(targets))
        key = (value.nbytes, tuple(rows), tuple(columns))
        small = self._moved.get(key)
        if small is None:
            small = np.array([[self.prices.movement(a, b, value) for b in columns] for a in rows])
            self._moved[key] = small
        at_row = {layout: i for i, layout in enumerate(rows)}
        at_column = {layout: i for i, layout in enumerate(columns)}
        return small[np.ix_([at_row[a] for a in sources], [at_column[b] for b in targets])]


def _is_passing(value: RecordedValue) -> bool:
    return value.kind == "activation" and not value.is_weight


def _gradients(layout: Layout) -> list[Layout]:
    """The layouts in which gradients may be added up: as the value lies, or pending over axes along which it is whole."""
    free = [axis for axis in layout.replicated_axes if layout.mesh.axis_size(axis) > 1]
    return [
        layout.with_pending(dict.fromkeys(axes, ReduceOp.SUM))
        for count in range(len(free) + 1)
        for axes in combinations(free, count)
    ]
