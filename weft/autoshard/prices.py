"""`Prices`: what ops take in each way, what movements take, what tensors hold; seconds and bytes of the busiest device."""

from __future__ import annotations

import math
from typing import final

import torch

from ..paper.machine import Machine
from ..paper.work import OpWork
from ..planning.costs.axis_cost import axis_cost
from ..planning.costs.cost import passing_time
from ..rules.registry import ops_named
from ..sharding.geometry import most_elements
from ..sharding.layout import Layout
from .program import RecordedOp, RecordedProgram, RecordedValue
from .trial import Sizes
from .ways import OpWay

__all__ = ["Prices"]

_SAVES_RESULT = frozenset(ops_named("_softmax _log_softmax _safe_softmax exp tanh sigmoid relu sqrt rsqrt reciprocal"))
"""Ops whose gradients need what they gave, not what they took."""


@final
class Prices:
    """Prices on one machine."""

    def __init__(self, program: RecordedProgram, machine: Machine, optimizer_states: int) -> None:
        self.program, self.machine, self.states = program, machine, optimizer_states

    def movement(self, source: Layout, target: Layout, value: RecordedValue) -> float:
        """The seconds from one layout to another."""
        return axis_cost(source, target, value.nbytes, self.machine.topology)

    def op(self, op: RecordedOp, way: OpWay) -> float:
        """The seconds of an op and of its gradients."""
        values = self.program.values
        given = [values[number] for number in op.inputs]
        made = [values[number] for number in op.outputs]
        if op.is_view:
            return 0.0
        if way.tried is not None:
            return way.tried.seconds(self.machine, self.sizes(op, way))
        nbytes = sum(self.held(layout, value) for layout, value in zip(way.inputs, given, strict=True))
        nbytes += sum(self.held(layout, value) for layout, value in zip(way.outputs, made, strict=False))
        dtype = next((value.dtype for value in (*given, *made) if value.dtype.is_floating_point), torch.float32)
        once = self.machine.seconds(OpWork(op.flops // way.parallel, nbytes, dtype))
        return once * self._passes(op, given) + self._passing(way, given)

    def _passes(self, op: RecordedOp, given: list[RecordedValue]) -> int:
        wanted = sum(value.needs_grad for value in given)
        return 1 + (wanted if op.flops else min(1, wanted))

    def sizes(self, op: RecordedOp, way: OpWay) -> Sizes:
        """What tells a call in one way from others like it."""
        first, known = self.program.values[op.inputs[0]], op.factors
        across = 1 if known is None else math.prod(known.factors.sizes[name] for name in known.added_up)
        return Sizes(self.held(way.inputs[0], first), math.prod(first.shape) // max(1, across))

    def _passing(self, way: OpWay, given: list[RecordedValue]) -> float:
        """What an op passes from device to device, forwards and backwards."""
        if not way.passed:
            return 0.0
        backwards = any(value.needs_grad for value in given)
        return min(self._as_ring(way, given), self._by_heads(way, given)) * (3 if backwards else 1)

    def _as_ring(self, way: OpWay, given: list[RecordedValue]) -> float:
        """What it takes until every device has seen the keys and values of all others."""
        mesh = way.outputs[0].mesh
        size = mesh.group_size(way.passed)
        passed = sum(self.held(layout, value) for layout, value in zip(way.inputs[1:3], given[1:3], strict=True))
        return (size - 1) * passing_time(mesh, way.passed, passed, self.machine.topology)

    def _by_heads(self, way: OpWay, given: list[RecordedValue]) -> float:
        """What it takes to have whole sequences of fewer heads: queries, keys, values and results change places."""
        query, lies = given[0], way.inputs[0]
        heads, sequence = len(query.shape) - 3, len(query.shape) - 2
        if heads < 0 or query.shape[heads] % lies.mesh.group_size(lies.dim_of):
            return math.inf
        splits = [[axis for axis in axes if axis not in way.passed] for axes in lies.splits]
        splits[heads] += lies.splits[sequence]
        return 4 * self.movement(lies, Layout(lies.mesh, splits), query)

    def held(self, layout: Layout, value: RecordedValue) -> int:
        """The bytes of a value that a device has."""
        return most_elements(layout, value.shape) * value.dtype.itemsize

    def working_bytes(self, op: RecordedOp, way: OpWay) -> int:
        """What an op and its gradient need for a moment: what they take and give, beside what is kept anyway."""
        values = self.program.values
        given = [(layout, values[number]) for layout, number in zip(way.inputs, op.inputs, strict=True)]
        made = [(layout, values[number]) for layout, number in zip(way.outputs, op.outputs, strict=False)]
        passing = [(layout, value) for layout, value in (*given, *made) if value.kind == "activation"]
        return sum(self.held(layout, value) * (1 + value.needs_grad - self.is_kept(value)) for layout, value in passing)

    def update(self, layout: Layout, value: RecordedValue) -> float:
        """The seconds of an optimizer: Adam reads or writes a parameter, its gradient or a state sixteen times."""
        nbytes = self.held(layout, value) * (4 + 6 * self.states if value.needs_grad else 0)
        return nbytes / (self.machine.bandwidth * self.machine.streaming)

    def reading(self, layout: Layout, value: RecordedValue) -> float:
        """The seconds in which a device reads its part of the batch: little, but less where the batch is split."""
        nbytes = self.held(layout, value)
        return nbytes / (self.machine.bandwidth * self.machine.streaming)

    def parameter_bytes(self, layout: Layout, value: RecordedValue) -> int:
        """What a parameter holds with its gradient and its states."""
        return self.held(layout, value) * (2 + self.states if value.needs_grad else 1)

    def is_kept(self, value: RecordedValue) -> bool:
        """Whether a gradient needs an activation."""
        if value.kind != "activation":
            return False
        program = self.program
        if value.producer is not None and program.ops[value.producer].func in _SAVES_RESULT:
            return value.needs_grad
        return any(self.keeps(program.ops[user], at) for user, at in value.users)

    def keeps(self, op: RecordedOp, at: int) -> bool:
        """Whether the gradient of an op needs one of its inputs."""
        wanted = [self.program.values[number].needs_grad for number in op.inputs]
        if op.is_view or not any(wanted) or op.func in _SAVES_RESULT:
            return False
        linear = "no" if op.factors is None else op.factors.factors.linear
        if linear == "each":
            return any(each for k, each in enumerate(wanted) if k != at)
        return linear == "no" and op.func is not torch.ops.aten._to_copy.default
