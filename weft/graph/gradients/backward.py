"""`grad`: reverse-mode differentiation of a recorded graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from torch import fx

from ..ops.creation import ones, zeros
from ..ops.elementwise import add
from ..recording.graph import Graph
from ..recording.op import CHAINED, PART, RecordedCall
from ..recording.values import TensorLike, TensorValue
from .example_sizes import example_sizes
from .movement_rows import ROWS, Backward, Contribution, values_of
from .traced import from_torch
from .vjp import at_run_time, differentiable

__all__ = ["grad"]

WithRespectTo: TypeAlias = TensorValue | int | Sequence[TensorValue | int] | None


def grad(
    graph: Graph, wrt: WithRespectTo = None, *, of: TensorValue | None = None, seed: TensorLike | None = None
) -> list[TensorValue]:
    """Append the backward graph: the gradients of one value with respect to others.

    `wrt` are values or positions of inputs, all float inputs unless told. `of` is the value that is differentiated, the
    first output unless told; where it is no single number, `seed` is its gradient. If the graph has its outputs
    already, the gradients become further outputs.

    >>> import torch
    >>> from weft.graph import Graph, TensorType, compile, ops
    >>> with Graph("loss", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(ops.sum(graph.inputs[0] ** 3))
    >>> grad(graph, wrt=0)
    [TensorValue(mul_1: f32[n] on cpu:0)]
    >>> compile(graph)(torch.tensor([1.0, 2.0]))
    (tensor(9.), tensor([ 3., 12.]))
    """
    with graph:
        target = graph.results[0] if of is None else of
        graph.own(target)
        asked = _asked(graph, wrt)
        grads = _Sweep(graph, target, _seed(graph, target, seed), asked).run()
        results = []
        for value in asked:
            found = grads.get(value.node)
            results.append(zeros(value.shape, value.dtype, value.device) if found is None else found)
    if graph.outputs is not None:
        graph.outputs.extend(results)
    return results


def _asked(graph: Graph, wrt: WithRespectTo) -> list[TensorValue]:
    if wrt is None:
        return [v for v in graph.arguments if isinstance(v, TensorValue) and differentiable(v.type)]
    asked: list[TensorValue] = []
    for item in wrt if isinstance(wrt, Sequence) else (wrt,):
        if isinstance(item, int) and not -len(graph.inputs) <= item < len(graph.inputs):
            raise ValueError(f"graph {graph.name!r} has {len(graph.inputs)} inputs, but wrt names input {item}")
        value = graph.inputs[item] if isinstance(item, int) else item
        if not isinstance(value, TensorValue) or not differentiable(value.type):
            raise ValueError(f"gradients are with respect to tensors of floats, but wrt has {value!r}")
        graph.own(value)
        asked.append(value)
    return asked


def _seed(graph: Graph, target: TensorValue, seed: TensorLike | None) -> TensorValue:
    if not differentiable(target.type):
        raise ValueError(f"{target!r} has no gradient: only floats have")
    if seed is not None:
        given = graph.tensor(seed, target.device)
        if given.type != target.type:
            raise ValueError(f"seed is the gradient of {target!r} and has its type, but got {given.type}")
        return given
    if target.type.num_elements() != 1:
        raise ValueError(f"{target!r} is no single number: reduce it first, for instance with ops.sum, or give seed=")
    return ones(target.shape, target.dtype, target.device)


class _Sweep:
    """One pass from the back to the front, adding up what each call says about its arguments."""

    def __init__(self, graph: Graph, target: TensorValue, seed: TensorValue, asked: Iterable[TensorValue]) -> None:
        self.graph = graph
        self.sizes = example_sizes(graph)
        self.grads: dict[fx.Node, TensorValue] = {target.node: seed}
        self.varying = {value.node for value in asked}
        """What depends on the values asked for: only this can have a gradient."""
        for node in graph.nodes:
            if not self.varying.isdisjoint(node.all_input_nodes):
                self.varying.add(node)

    def run(self) -> dict[fx.Node, TensorValue]:
        for node in reversed(list(self.graph.nodes)):
            call: RecordedCall = node.meta["call"]
            if node in self.varying and call.op is not PART:
                back = self._backward(node, call)
                if back.present:
                    for value, contribution in self._contributions(back):
                        self._add(value, contribution)
        return self.grads

    def _backward(self, node: fx.Node, call: RecordedCall) -> Backward:
        parts = [node]
        if call.many:
            found = {user.args[1]: user for user in node.users if user.meta["call"].op is PART}
            parts = [found[i] for i in range(len(call.types))]
        results = tuple(TensorValue(self.graph, part, kind) for part, kind in zip(parts, call.types, strict=True))
        return Backward(call, results, tuple(map(self.grads.get, parts)))

    def _contributions(self, back: Backward) -> Iterable[Contribution]:
        """By the row of a movement; of anything else by torch, traced, or asked at run time where it cannot be."""
        op = back.call.op
        if not values_of(back.call):
            return ()  # what is read of a buffer comes from nowhere that has a gradient
        if op.kind in CHAINED:
            return ROWS[op](back, *back.call.args)
        if op.opaque or self.sizes is None:
            return at_run_time(back)
        return from_torch(back, self.varying, self.sizes)

    def _add(self, value: TensorValue, contribution: TensorValue | None) -> None:
        if contribution is not None and value.node in self.varying:
            so_far = self.grads.get(value.node)
            self.grads[value.node] = contribution if so_far is None else add(so_far, contribution)
