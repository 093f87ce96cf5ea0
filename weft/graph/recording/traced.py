"""`TracedFunction`: torch's own graph of a function's operations, ready to be recorded in a `Graph`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch import fx
from torch._ops import OpOverload

from ...sharding.dims import Dim, Shape
from .device_ref import DeviceRef
from .graph import Graph
from .op import RESHAPE, Argument, Kernel, Kind, Op
from .types import TensorType
from .values import TensorValue

__all__ = ["SAME", "Expression", "TracedFunction", "place"]

Expression: TypeAlias = Any
"""A size in torch's symbols: an expression of sympy's, which has no types."""

Names: TypeAlias = Mapping[Expression, Dim]
"""The sizes that the symbols of a trace stand for."""

_Values: TypeAlias = "dict[fx.Node, TensorValue | list[TensorValue]]"


class _TracedResult(NamedTuple):
    """What an operation gives, on whichever device."""

    dtype: torch.dtype
    shape: Shape
    device: torch.device


@final
class TracedFunction:
    """What `make_fx` traced, in the ops of a graph: its fake tensors are gone, its sizes are `Dim`s."""

    def __init__(self, traced: fx.GraphModule, names: Names) -> None:
        self._fx = traced.graph
        self._constants = {node: getattr(traced, node.target) for node in self._fx.find_nodes(op="get_attr")}
        sizes: dict[fx.Node, Argument] = {}
        for node in self._fx.nodes:
            made = node.meta.get("val")
            node.meta.clear()
            if isinstance(made, torch.SymInt):
                sizes[node] = _dim(made, names)
            elif node.op == "call_function":
                node.meta["many"] = isinstance(made, (tuple, list))
                fakes = made if isinstance(made, (tuple, list)) else [made]
                node.meta["results"] = [_result(fake, names) for fake in fakes]
            node.args = fx.node.map_arg(node.args, lambda used: sizes.get(used, used))  # type: ignore[arg-type, return-value]
            node.kwargs = fx.node.map_arg(node.kwargs, lambda used: sizes.get(used, used))  # type: ignore[arg-type, return-value]
        self._fx.eliminate_dead_code()
        for node in sizes:
            if node.op == "placeholder":
                self._fx.erase_node(node)

    def record(
        self, graph: Graph, arguments: Iterable[TensorValue], device: DeviceRef | None = None
    ) -> list[TensorValue | None]:
        """Record the operations on these values: all on one device where that is said, else where torch had them."""
        given = iter(arguments)
        values: _Values = {}
        for node in self._fx.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                data = self._constants[node]
                values[node] = graph.constant(data, device=device or place(data.device))
            elif node.op == "call_function":
                values[node] = _recorded(graph, node, values, device)
        (output,) = self._fx.find_nodes(op="output")
        return [None if result is None else _value(result, values) for result in output.args[0]]


def _result(fake: torch.Tensor | int | torch.SymInt | None, names: Names) -> _TracedResult:
    if not isinstance(fake, torch.Tensor):
        # What is no tensor, or was left out, still has its place among the results.
        return _TracedResult(torch.uint8, Shape([0]), torch.device("cpu"))
    return _TracedResult(fake.dtype, Shape([_dim(size, names) for size in fake.shape]), fake.device)


def _dim(size: int | torch.SymInt, names: Names) -> Dim:
    return Dim.of(_read(size.node.expr, names) if isinstance(size, torch.SymInt) else size)


_ARITHMETIC: dict[str, Callable[[Dim | int, Dim | int], Dim | int]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}


def _read(size: Expression, names: Names) -> Dim | int:
    """A size that torch says in its symbols, in names."""
    if size in names:
        return names[size]
    if size.is_Integer:
        return int(size)
    if size.is_Pow:
        base, exponent = size.args
        return Shape([_read(base, names)] * int(exponent)).numel()
    apply = _ARITHMETIC.get(type(size).__name__)
    if apply is None:
        raise ValueError(f"torch makes a size {size}, but the sizes of a graph are names joined by + - * // %")
    return reduce(apply, [_read(part, names) for part in size.args])


def _recorded(
    graph: Graph, node: fx.Node, values: _Values, device: DeviceRef | None
) -> TensorValue | list[TensorValue]:
    if node.target is operator.getitem:
        whole, index = node.args
        assert isinstance(whole, fx.Node)
        several = values[whole]
        assert isinstance(several, list)
        assert isinstance(index, int)
        return several[index]
    assert isinstance(node.target, OpOverload)
    if node.target in SAME:
        return _value(node.args[0], values)
    kinds = [TensorType(dtype, shape, device or place(at)) for dtype, shape, at in node.meta["results"]]
    args = tuple(_argument(argument, values, device) for argument in node.args)
    kwargs = {key: _argument(argument, values, device) for key, argument in node.kwargs.items()}
    results = graph.record(_op(node.target), args, kinds, kwargs=kwargs, many=node.meta["many"])
    return results if node.meta["many"] else results[0]


def _value(node: Argument, values: _Values) -> TensorValue:
    value = values[node] if isinstance(node, fx.Node) else None
    assert isinstance(value, TensorValue)
    return value


def _argument(argument: Argument, values: _Values, device: DeviceRef | None) -> Argument:
    if isinstance(argument, fx.Node):
        return _value(argument, values)
    if isinstance(argument, (tuple, list)):
        return tuple(_argument(item, values, device) for item in argument)
    return device or argument if isinstance(argument, torch.device) else argument


def place(device: torch.device) -> DeviceRef:
    """A device of Weft's that is this one of torch's; others on the same hardware share its memory."""
    return DeviceRef.CPU(0) if device.type == "cpu" else DeviceRef.GPU(device.index or 0)


SAME = frozenset(
    {
        torch.ops.aten._lazy_clone.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.clone.default,
        torch.ops.aten.detach.default,
        torch.ops.aten.lift_fresh_copy.default,
    }
)
"""What only protects a value from writes, of which there are none in a graph."""

# One for each of torch's overloads that was met. A traced view knows how its argument lay in memory, which another run
# need not repeat.
_ops: dict[OpOverload, Op] = {torch.ops.aten.view.default: RESHAPE, torch.ops.aten._unsafe_view.default: RESHAPE}


def _op(target: OpOverload) -> Op:
    if target not in _ops:
        first = target._schema.returns[0].alias_info if target._schema.returns else None
        kind = Kind.COMPUTE if first is None else Kind.VIEW
        pure = torch.Tag.nondeterministic_seeded not in target.tags
        _ops[target] = Op(f"aten.{target.overloadpacket.__name__}", _kernel(target), kind, pure)
    return _ops[target]


def _kernel(target: OpOverload) -> Kernel:
    """Torch's own function where it is called alike: it starts about a microsecond sooner."""
    found = getattr(torch, target.overloadpacket.__name__, None)
    alike = torch.Tag.pointwise in target.tags or target in _CALLED_ALIKE
    return found if alike and target.namespace == "aten" and callable(found) else target


_CALLED_ALIKE = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default})
