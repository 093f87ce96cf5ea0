"""From a recorded graph to plain torch calls: sizes become numbers, movements become copies or nothing.

Where devices share memory (all CPU devices do), a movement copies nothing: the value is the same torch tensor,
and what all devices compute from it is computed once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from torch import fx

from ...runtime.machine import ownership, torch_device
from ...runtime.reduction import reduced
from ...sharding.dims import Dim
from ...sharding.placements import ReduceOp
from ..recording.device_ref import DeviceRef
from ..recording.op import CHAINED, CONSTANT, PART, REBIND, Argument, Kernel, Kind, RecordedCall
from ..recording.sizes import folded
from ..recording.values import GraphValue
from .fusion import fused

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["Program", "lower"]


@final
@dataclass(slots=True)
class Program:
    """A graph in plain torch calls: the calls, and the tensors known before the run, which are its last arguments."""

    fx: fx.Graph
    constants: list[torch.Tensor] = field(default_factory=list)
    input_count: int = 0

    @property
    def arguments(self) -> list[torch.fx.Node]:
        """What a run is given: inputs, sizes, then constants."""
        return [node for node in self.fx.nodes if node.op == "placeholder"]


def lower(graph: Graph, *, joined: bool = False) -> Program:
    """Write a graph in plain torch calls; `joined` says that a compiler will join them."""
    lowering = _Lowering(graph, joined)
    for node in graph.fx.nodes:
        lowering.visit(node)
    lowering.fx.output(tuple(lowering.nodes[value.node] for value in graph.results))
    return Program(lowering.fx, lowering.constants, len(graph.arguments) + len(graph.sizes))


def _unknown(name: str) -> tuple[fx.Node, int]:
    raise AssertionError(f"the size {name} is told to a run, but has no argument")


def _copied(x: torch.Tensor, _device: str) -> torch.Tensor:
    # The device only tells copies apart, where devices that share memory are made to behave as if they did not.
    return x.clone()


def _sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    # Only between accelerators: the host would read, or its owner change, what is still on its way.
    return x.to(device, non_blocking=x.is_cuda and device.type == "cuda")


def _reducer(op: ReduceOp) -> Kernel:
    def together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return reduced(op, parts)

    return together


def _chain(combine: Callable[..., torch.Tensor], *, mean: bool = False, wide: bool = False) -> Kernel:
    """A reduction as one call after another, which a compiler joins into one loop."""

    def together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        short = wide and parts[0].dtype in (torch.float16, torch.bfloat16)
        total = parts[0].float() if short else parts[0]
        for part in parts[1:]:
            total = combine(total, part)
        total = total / len(parts) if mean else total
        return total.to(parts[0].dtype) if short else total

    return together


_REDUCERS = {
    "sum": _reducer(ReduceOp.SUM),
    "mean": _reducer(ReduceOp.AVG),
    "max": _reducer(ReduceOp.MAX),
    "min": _reducer(ReduceOp.MIN),
    "prod": _reducer(ReduceOp.PROD),
}
_JOINED_REDUCERS = {
    "sum": _chain(torch.add, wide=True),
    "mean": _chain(torch.add, mean=True, wide=True),
    "max": _chain(torch.maximum),
    "min": _chain(torch.minimum),
    "prod": _chain(torch.mul, wide=True),
}


class _Lowering:
    """One pass over a recorded graph; it is the `Emitter` that movements write with."""

    def __init__(self, graph: Graph, joined: bool) -> None:
        self.graph = graph
        self.reducers = _JOINED_REDUCERS if joined else _REDUCERS
        self.fx = fx.Graph()
        self.nodes: dict[fx.Node, fx.Node] = {}
        self.results: dict[fx.Node, Sequence[fx.Node]] = {}
        self.sizes: dict[str, int | fx.Node] = {}
        self.constants: list[torch.Tensor] = []
        self.current: RecordedCall | None = None
        self._place_arguments()

    def _place_arguments(self) -> None:
        for value in self.graph.arguments:
            self.nodes[value.node] = self.fx.placeholder(value.name)
        for name in self.graph.sizes:
            self.sizes[name] = self.fx.placeholder(name)
        for node in self.graph.nodes:
            call: RecordedCall = node.meta["call"]
            if call.op is CONSTANT:
                (data,) = call.args
                assert isinstance(data, torch.Tensor)
                self.constants.append(data.to(torch_device(call.types[0].device.to_device())))
                self.nodes[node] = self.fx.placeholder(node.name)

    def visit(self, node: fx.Node) -> None:
        """Write one recorded operation."""
        if node.op == "placeholder" or node.meta["call"].op is CONSTANT:
            return
        call: RecordedCall = node.meta["call"]
        self.current = call
        if call.op is PART:
            whole, index = node.args
            assert isinstance(whole, fx.Node)
            assert isinstance(index, int)
            self.nodes[node] = self.results[whole][index]
        elif call.op is REBIND:
            self.nodes[node] = self.nodes[node.args[0]]  # type: ignore[index]
        else:
            self._keep(node, call, fused(self, call) or self._written(call))
        self.current = None

    def _keep(self, node: fx.Node, call: RecordedCall, written: object) -> None:
        if call.many:
            assert isinstance(written, tuple)
            self.results[node] = written
        else:
            assert isinstance(written, fx.Node)
            self.nodes[node] = written

    def _written(self, call: RecordedCall) -> object:
        if call.op.kind in CHAINED:
            return call.op.kernel(self, *call.args)
        return self._compute(call)

    def _compute(self, call: RecordedCall) -> fx.Node | tuple[fx.Node, ...]:
        args = tuple(self._argument(argument) for argument in call.args)
        kwargs = {name: self._argument(argument) for name, argument in call.kwargs.items()}
        made = self._write(call.op.kernel, args, kwargs, call.op.kind)
        if not call.many:
            return made
        return tuple(self._write(operator.getitem, (made, i), {}, call.op.kind) for i in range(len(call.types)))

    def _write(self, kernel: Kernel, args: tuple[object, ...], kwargs: Mapping[str, object], kind: Kind) -> fx.Node:
        node = self.fx.create_node("call_function", kernel, args, dict(kwargs))  # type: ignore[arg-type]
        node.meta["kind"] = kind
        node.meta["call"] = self.current
        return node

    def _argument(self, argument: Argument) -> object:
        if isinstance(argument, GraphValue):
            return self.nodes[argument.node]
        if isinstance(argument, Dim):
            return self.size(argument)
        if isinstance(argument, DeviceRef):
            return torch_device(argument.to_device())
        if isinstance(argument, (tuple, list)):
            return tuple(self._argument(item) for item in argument)
        return argument

    def call(self, kernel: Kernel, *args: Argument) -> fx.Node:
        assert self.current is not None
        return self._write(kernel, tuple(self._argument(a) for a in args), {}, self.current.op.kind)

    def view(self, kernel: Kernel, *args: Argument) -> fx.Node:
        return self._write(kernel, tuple(self._argument(a) for a in args), {}, Kind.VIEW)

    def node(self, value: GraphValue) -> fx.Node:
        return self.nodes[value.node]

    def moved(self, node: fx.Node, source: DeviceRef, target: DeviceRef) -> fx.Node:
        if self.share(source, target):
            return node
        there = torch_device(target.to_device())
        if there == torch_device(source.to_device()):
            return self._write(_copied, (node, str(target)), {}, Kind.MOVEMENT)
        return self._write(_sent, (node, there), {}, Kind.MOVEMENT)

    def share(self, one: DeviceRef, other: DeviceRef) -> bool:
        if one == other:
            return True
        return not ownership.separate_memory and torch_device(one.to_device()) == torch_device(other.to_device())

    def reduced(self, how: str, parts: list[fx.Node]) -> fx.Node:
        return self.call(self.reducers[how], tuple(parts))

    def size(self, dim: Dim) -> int | fx.Node:
        if dim.is_static:
            return int(dim)
        text = str(dim)
        if text not in self.sizes:
            self.sizes[text] = folded(dim, self._measured, self._calculated)
        return self.sizes[text]

    def _measured(self, name: str) -> int | fx.Node:
        if name not in self.sizes:
            source, dim = self.graph.symbols[name] or _unknown(name)
            self.sizes[name] = self._write(torch.Tensor.size, (self.nodes[source], dim), {}, Kind.COMPUTE)
        return self.sizes[name]

    def _calculated(self, kernel: Kernel, *operands: int | fx.Node) -> int | fx.Node:
        return self._write(kernel, operands, {}, Kind.COMPUTE)
