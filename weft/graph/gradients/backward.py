"""`grad`: reverse-mode differentiation of a recorded graph, by the table of transposes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import fx

from weft.graph.gradients.table import NO_GRADIENT, TRANSPOSES, Backward, Contribution, differentiable, values_in
from weft.graph.ops.creation import ones, zeros
from weft.graph.ops.elementwise import add
from weft.graph.recording.graph import Graph
from weft.graph.recording.op import CHAINED, PART, Kernel, Op, RecordedCall
from weft.graph.recording.values import TensorLike, TensorValue

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
        grads = _Sweep(graph, target, _seed(graph, target, seed)).run()
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

    def __init__(self, graph: Graph, target: TensorValue, seed: TensorValue) -> None:
        self.graph = graph
        self.grads: dict[fx.Node, TensorValue] = {target.node: seed}
        self.nodes = self._needed(target)

    def _needed(self, target: TensorValue) -> list[fx.Node]:
        """What the target depends on, last first."""
        needed = {target.node}
        order = []
        for node in reversed(list(self.graph.fx.nodes)):
            if node in needed:
                order.append(node)
                needed.update(node.all_input_nodes)
        return order

    def run(self) -> dict[fx.Node, TensorValue]:
        for node in self.nodes:
            if node.op == "placeholder":
                continue
            call: RecordedCall = node.meta["call"]
            if call.op is PART or call.op.name in NO_GRADIENT:
                continue
            back = self._backward(node, call)
            if any(grad is not None for grad in back.grads):
                for value, contribution in contributions(back):
                    self._add(value, contribution)
        return self.grads

    def _backward(self, node: fx.Node, call: RecordedCall) -> Backward:
        if not call.many:
            return Backward(call, (TensorValue(self.graph, node, call.types[0]),), (self.grads.get(node),))
        parts: dict[int, fx.Node] = {}
        for user in node.users:
            if user.meta["call"].op is PART:
                parts[user.meta["call"].args[1]] = user
        results = tuple(TensorValue(self.graph, parts[i], kind) for i, kind in enumerate(call.types))
        return Backward(call, results, tuple(self.grads.get(result.node) for result in results))

    def _add(self, value: TensorValue, contribution: TensorValue | None) -> None:
        if contribution is None or not differentiable(value.type):
            return
        so_far = self.grads.get(value.node)
        self.grads[value.node] = contribution if so_far is None else add(so_far, contribution)


def contributions(back: Backward) -> Iterable[Contribution]:
    """What a call says about the gradients of its arguments: by its row, or by asking torch at run time."""
    row = TRANSPOSES.get(back.call.op.name)
    if row is not None:
        return row(back)
    if back.call.op.kind in CHAINED:
        raise ValueError(f"{back.call.op.name} at {back.call.where} has no gradient: take the values around it")
    return _asked_of_torch(back)


def _asked_of_torch(back: Backward) -> Iterable[Contribution]:
    """Torch differentiates the kernel when the graph runs; this is how functions of the user's own have gradients."""
    call = back.call
    floats = [value for value in values_in(call.args) if differentiable(value.type)]
    kernel = Op(f"{call.op.name}_backward", _transposed(call), pure=call.op.pure)
    args = (call.args, tuple(call.kwargs.items()), tuple(back.filled()))
    kinds = [value.type for value in floats]
    return zip(floats, back.result.graph.record(kernel, args, kinds, many=True), strict=True)


def _transposed(call: RecordedCall) -> Kernel:
    kernel, kinds = call.op.kernel, tuple(differentiable(kind) for kind in call.types)

    def backward(
        args: tuple[object, ...], kwargs: tuple[tuple[str, object], ...], grads: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        floats = [x for x in _tensors(args) if x.is_floating_point() or x.is_complex()]

        def forward(*replaced: torch.Tensor) -> tuple[torch.Tensor, ...]:
            fresh = iter(replaced)
            result = kernel(*(_replaced(argument, fresh) for argument in args), **dict(kwargs))
            results = result if isinstance(result, (tuple, list)) else (result,)
            return tuple(r for r, is_float in zip(results, kinds, strict=True) if is_float)

        transpose = torch.func.vjp(forward, *floats)[1]
        return tuple(transpose(tuple(g for g, is_float in zip(grads, kinds, strict=True) if is_float)))

    backward.__name__ = backward.__qualname__ = f"{call.op.name}_backward"
    return backward


def _tensors(argument: object) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [tensor for item in argument for tensor in _tensors(item)]
    return []


def _replaced(argument: object, fresh: Iterator[torch.Tensor]) -> object:
    if isinstance(argument, torch.Tensor):
        return next(fresh) if argument.is_floating_point() or argument.is_complex() else argument
    if isinstance(argument, (tuple, list)):
        return tuple(_replaced(item, fresh) for item in argument)
    return argument
