"""`capture`: the graph of an eager function over tensors on a mesh."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from weft.graph.recording.device_ref import DeviceRef
from weft.graph.recording.distributed_value import DistributedValue, layout_of, piece_types
from weft.graph.recording.graph import Graph, OutputValue
from weft.graph.recording.op import Kernel, Kind, Op
from weft.graph.recording.types import TensorType
from weft.graph.recording.values import TensorLike, TensorValue
from weft.runtime.machine import torch_device
from weft.sharding.mapping import named_mapping
from weft.sharding.types import DistributedTensorType, TensorLayout
from weft.tensor import Tensor
from weft.tensor.tensor import wrap

__all__ = ["CaptureType", "capture"]

CaptureType: TypeAlias = TensorType | DistributedTensorType | TensorLayout | torch.Tensor
"""What stands for an argument of the captured function: a type, or a tensor of it."""

Results: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"


def capture(function: Callable[..., Results], *types: CaptureType, name: str | None = None) -> Graph:
    """The graph of an eager function: what it does to tensors of these types, in plain torch operations.

    Where all devices share memory, a movement between layouts leaves no operation at all. Sizes are numbers: the
    function may decide by them. Tensors that the function closes over become constants.

    >>> import torch, weft
    >>> from weft import P
    >>> from weft.graph import compile
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 2})
    >>> x = weft.shard(torch.ones(4, 8), mesh, P("dp", None))
    >>> w = weft.shard(torch.ones(8, 6), mesh, P(None, "tp"))
    >>> graph = capture(lambda x, w: torch.relu(x @ w), x, w)
    >>> print(graph)
    graph lambda(input0: f32[4@dp, 8] on dp=2 × tp=2, input1: f32[8, 6@tp] on dp=2 × tp=2)
      mm = aten.mm(input0, input1)      f32[4, 6] on cpu:0
      relu = aten.relu(mm)              f32[4, 6] on cpu:0
      return relu
    >>> compile(graph)(x, w)
    Tensor(f32[4@dp, 6@tp] on dp=2 × tp=2)
    ...
    """
    kinds = [_type_of(kind) for kind in types]
    title = name or str(getattr(function, "__name__", type(function).__name__)).strip("<>")
    graph = Graph(title, input_types=kinds)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    layouts: list[TensorLayout | None] = []
    traced = _traced(function, graph, mode, layouts)
    with graph:
        flat = _Recorder(graph, traced).record()
        graph.output(*_outputs(graph, flat, layouts))
    return graph


def _type_of(kind: CaptureType) -> TensorType | DistributedTensorType | TensorLayout:
    if isinstance(kind, Tensor):
        return TensorLayout(kind.dtype, tuple(kind.shape), kind.mapping)
    if isinstance(kind, torch.Tensor):
        return TensorType(kind.dtype, tuple(kind.shape), _place(kind.device))
    if not isinstance(kind, (TensorType, DistributedTensorType, TensorLayout)):
        raise TypeError(
            f"capture takes tensors and their types (TensorType, DistributedTensorType, TensorLayout), but got {kind!r}"
        )
    if not kind.shape.is_static:
        raise ValueError(
            f"capture runs the function once, which needs numbers for sizes, but got {kind}: "
            "capture it for each size, or write it with weft.graph.ops"
        )
    return kind


def _traced(
    function: Callable[..., Results], graph: Graph, mode: FakeTensorMode, layouts: list[TensorLayout | None]
) -> fx.GraphModule:
    """The function over plain tensors, as torch's own graph of operations without effects."""

    def plain(*pieces: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(pieces)
        results = function(*(_argument(value, rest) for value in graph.inputs))
        flat: list[torch.Tensor] = []
        layouts.clear()
        for result in results if isinstance(results, (tuple, list)) else (results,):
            flat.extend(_flat(result, layouts))
        return tuple(flat)

    with mode:
        fakes = [
            torch.empty(value.shape.sizes, dtype=value.dtype, device=torch_device(value.device.to_device()))
            for value in graph.arguments
        ]
    first = make_fx(plain, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    # What writes in place is rewritten, so that every operation only gives results.
    second = make_fx(functionalize(first, remove="mutations"), tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
    second.graph.eliminate_dead_code()
    return second


def _argument(value: object, pieces: Iterator[torch.Tensor]) -> torch.Tensor:
    if isinstance(value, DistributedValue):
        kind = value.type
        asked = kind.mapping if isinstance(kind, TensorLayout) else None
        return wrap(tuple(next(pieces) for _ in value.pieces), layout_of(kind), kind.shape.sizes, asked=asked)
    return next(pieces)


def _flat(result: object, layouts: list[TensorLayout | None]) -> tuple[torch.Tensor, ...]:
    if isinstance(result, Tensor):
        layouts.append(TensorLayout(result.dtype, tuple(result.shape), named_mapping(result._layout)))
        return result._pieces
    if isinstance(result, torch.Tensor):
        layouts.append(None)
        return (result,)
    raise TypeError(f"a captured function gives tensors, but this one gave {result!r}: return tensors only")


def _outputs(graph: Graph, flat: list[TensorValue], layouts: list[TensorLayout | None]) -> list[OutputValue]:
    rest = iter(flat)
    outputs: list[OutputValue] = []
    for i, kind in enumerate(layouts):
        if kind is None:
            outputs.append(next(rest))
        else:
            count = len(piece_types(kind))
            outputs.append(DistributedValue(graph, f"output{i}", kind, [next(rest) for _ in range(count)]))
    return outputs


class _Recorder:
    """Records torch's graph of operations in a `Graph`."""

    def __init__(self, graph: Graph, traced: fx.GraphModule) -> None:
        self.graph = graph
        self.traced = traced
        self.values: dict[fx.Node, TensorValue | list[TensorValue]] = {}

    def record(self) -> list[TensorValue]:
        arguments = iter([value for value in self.graph.arguments if isinstance(value, TensorValue)])
        for node in self.traced.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(arguments)
            elif node.op == "get_attr":
                self.values[node] = self._constant(getattr(self.traced, str(node.target)))
            elif node.op == "output":
                return [self._value(value) for value in node.args[0]]
            else:
                self.values[node] = self._call(node)
        raise AssertionError("torch's graph has no output")

    def _value(self, node: object) -> TensorValue:
        value = self.values[node] if isinstance(node, fx.Node) else None
        assert isinstance(value, TensorValue)
        return value

    def _mapped(self, argument: object) -> object:
        if isinstance(argument, fx.Node):
            return self._value(argument)
        if isinstance(argument, (tuple, list)):
            return tuple(self._mapped(item) for item in argument)
        return argument

    def _constant(self, data: TensorLike) -> TensorValue:
        return self.graph.constant(data, device=_place(data.device) if isinstance(data, torch.Tensor) else None)

    def _call(self, node: fx.Node) -> TensorValue | list[TensorValue]:
        target = node.target
        if target is operator.getitem:
            whole, index = node.args
            assert isinstance(whole, fx.Node)
            assert isinstance(index, int)
            values = self.values[whole]
            assert isinstance(values, list)
            return values[index]
        assert isinstance(target, torch._ops.OpOverload)
        if target in _SAME:
            return self._value(node.args[0])
        result = node.meta["val"]
        many = isinstance(result, (tuple, list))
        kinds = [_kind(fake) for fake in (result if many else [result])]
        args = tuple(self._mapped(argument) for argument in node.args)
        kwargs = {key: self._mapped(argument) for key, argument in node.kwargs.items()}
        values = self.graph.record(_op(target), args, kinds, kwargs=kwargs, many=many)
        return values if many else values[0]


def _kind(fake: object) -> TensorType:
    assert isinstance(fake, FakeTensor)
    return TensorType(fake.dtype, tuple(fake.shape), _place(fake.device))


def _place(device: torch.device) -> DeviceRef:
    """A device of Weft's that is this one of torch's; others on the same hardware share its memory."""
    return DeviceRef.CPU(0) if device.type == "cpu" else DeviceRef.GPU(device.index or 0)


_SAME = frozenset(
    {
        torch.ops.aten._lazy_clone.default,
        torch.ops.aten.alias.default,
        torch.ops.aten.detach.default,
        torch.ops.aten.lift_fresh_copy.default,
    }
)
"""What only protects a value from writes, of which there are none in a graph."""

_ops: dict[torch._ops.OpOverload, Op] = {}


def _op(target: torch._ops.OpOverload) -> Op:
    if target not in _ops:
        first = target._schema.returns[0].alias_info if target._schema.returns else None
        kind = Kind.COMPUTE if first is None else Kind.VIEW
        pure = torch.Tag.nondeterministic_seeded not in target.tags
        _ops[target] = Op(f"aten.{target.overloadpacket.__name__}", _kernel(target), kind, pure)
    return _ops[target]


def _kernel(target: torch._ops.OpOverload) -> Kernel:
    """Torch's own function where it is called alike: it starts about a microsecond sooner."""
    found = getattr(torch, target.overloadpacket.__name__, None)
    alike = torch.Tag.pointwise in target.tags or target in _CALLED_ALIKE
    return found if alike and target.namespace == "aten" and callable(found) else target


_CALLED_ALIKE = frozenset({torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default})
