"""`Graph`: a program over symbolic tensors, recorded before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat, TypeAlias, final

import torch
from torch import fx
from torch.utils.dlpack import from_dlpack

from ...sharding.dims import Dim, Shape
from ...sharding.types import (
    DistributedBufferType,
    DistributedTensorType,
    LocalBufferType,
    LocalTensorType,
    TensorLayout,
)
from ..showing.cost import Cost, cost_of
from ..showing.printing import text
from .constraint import Constraint
from .device_ref import DeviceLike, DeviceRef
from .distributed_value import DistributedKind, DistributedValue, piece_types, shard_types
from .op import CONSTANT, PART, SIZE, SIZES, Argument, Op, RecordedCall
from .types import BufferType, DTypeLike, TensorType, torch_dtype
from .values import BufferValue, DLPackArray, GraphValue, HasTensorValue, TensorLike, TensorValue

__all__ = ["Graph", "InputType", "InputValue", "OutputValue"]

InputType: TypeAlias = TensorType | BufferType | DistributedKind
"""What a graph can be given: tensors and buffers on one device, or on a mesh."""

GivenType: TypeAlias = InputType | LocalTensorType | LocalBufferType
"""What may stand for an input: also what one device holds of a tensor on a mesh."""

InputValue: TypeAlias = TensorValue | BufferValue | DistributedValue
"""What stands for an input inside the graph."""

OutputValue: TypeAlias = TensorValue | DistributedValue
"""What a graph can give."""

_stack: ContextVar[tuple[Graph, ...]] = ContextVar("weft_graphs", default=())
_PACKAGE = str(Path(__file__).parents[1])


@final
class Graph:
    """A program over symbolic tensors: what is written inside `with graph:` is recorded, then compiled and run.

    >>> from weft.graph import TensorType, ops
    >>> with Graph("scaled", input_types=[TensorType("float32", ["batch", 4])]) as graph:
    ...     graph.output(ops.relu(graph.inputs[0]) * 2)
    >>> print(graph)
    graph scaled(input0: f32[batch, 4] on cpu:0)
      relu = relu(input0)                f32[batch, 4] on cpu:0
      mul = mul(relu, 2)                 f32[batch, 4] on cpu:0
      return mul
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., object] | None = None,
        input_types: Sequence[GivenType] | Mapping[str, GivenType] = (),
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a graph's name is a string, but got {name!r}: use Graph('block', input_types=[...])")
        self.name = name
        self.fx = fx.Graph()
        # `InputValue`s; which of them an input is, the reader of `input_types` knows and a type checker cannot.
        self.inputs: list[Any] = []
        self.arguments: list[TensorValue | BufferValue] = []
        """The inputs in one row: of one that lies on a mesh, what this process stores."""
        self.outputs: list[OutputValue] | None = None
        self.constraints: list[Constraint] = []
        self.symbols: dict[str, tuple[fx.Node, int] | None] = {}
        """For each name, the value and the dim that show its size; nothing where a run is told it."""
        self.measured: set[str] = set()
        """The names whose sizes are known only when the op that makes them has run."""
        self.sizes: list[str] = []
        """The names whose sizes no single argument shows; a run is told them."""
        named = input_types.items() if isinstance(input_types, Mapping) else _numbered(input_types)
        for input_name, input_type in named:
            self._add_input(input_name, input_type)
        self._check_symbols()
        if forward is not None:
            with self:
                result = forward(*self.inputs)
                self.output(*(result if isinstance(result, (tuple, list)) else (result,)))

    @staticmethod
    def current() -> Graph:
        """The graph of the innermost `with graph:`.

        >>> with Graph("g") as graph:
        ...     Graph.current() is graph
        True
        """
        graphs = _stack.get()
        if not graphs:
            raise ValueError("there is no graph to record in: write this inside `with graph:`")
        return graphs[-1]

    def __enter__(self) -> Graph:
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _stack.set(_stack.get()[:-1])

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """The types of the inputs, in order."""
        return tuple(value.type for value in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType | DistributedKind, ...]:
        """The types of the outputs, in order."""
        return tuple(value.type for value in self.checked_outputs())

    @property
    def results(self) -> list[TensorValue]:
        """The outputs in one row: of one that lies on a mesh, what this process stores."""
        flat: list[TensorValue] = []
        for value in self.checked_outputs():
            pieces = value.pieces if isinstance(value, DistributedValue) else (value,)
            flat.extend(piece for piece in pieces if isinstance(piece, TensorValue))
        return flat

    @property
    def nodes(self) -> Iterator[fx.Node]:
        """The recorded operations, in order, without the inputs."""
        return (node for node in self.fx.nodes if node.op != "placeholder")

    def output(self, *values: TensorLike | DistributedValue) -> None:
        """Say what the graph gives; once, and last.

        >>> from weft.graph import TensorType
        >>> with Graph("pair", input_types=[TensorType("float32", [2])]) as graph:
        ...     x = graph.inputs[0]
        ...     graph.output(x, x + 1)
        >>> [str(kind) for kind in graph.output_types]
        ['f32[2] on cpu:0', 'f32[2] on cpu:0']
        """
        if self.outputs is not None:
            raise ValueError(
                f"graph {self.name!r} already has its outputs {_listed(self.outputs)}: give them all in one call"
            )
        self.outputs = [
            self._given(value) if isinstance(value, DistributedValue) else self.tensor(value) for value in values
        ]

    def cost(self, **sizes: int) -> Cost:
        """What a run will cost each device, when the names in the graph have these sizes.

        >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
        ...     graph.output(graph.inputs[0] * 2)
        >>> graph.cost(n=8).flops
        8
        """
        return cost_of(self, sizes)

    def _given(self, value: DistributedValue) -> DistributedValue:
        if isinstance(value.type, DistributedBufferType):
            raise TypeError(f"{value!r} is a buffer, which the caller already has: give what it holds")
        for piece in value.pieces:
            self.own(piece)
        return value

    def checked_outputs(self) -> list[OutputValue]:
        """The outputs, which must have been given."""
        if self.outputs is None:
            raise ValueError(f"graph {self.name!r} has no outputs yet: call graph.output(...) inside `with graph:`")
        return self.outputs

    def tensor(self, value: TensorLike, device: DeviceRef | None = None) -> TensorValue:
        """The value of this graph that something stands for: numbers, sizes and arrays become constants.

        >>> with Graph("g") as graph:
        ...     graph.tensor(2.5)
        TensorValue(constant: f32[] on cpu:0)
        """
        if isinstance(value, HasTensorValue):
            value = value.__tensorvalue__()
        if isinstance(value, TensorValue):
            self.own(value)
            return value
        if isinstance(value, Shape):
            return self._sizes(SIZES, value, [len(value)], device)
        if isinstance(value, Dim):
            return self._sizes(SIZE, value, [], device)
        return self.constant(value, device=device)

    def constant(
        self, value: TensorLike, dtype: DTypeLike | None = None, device: DeviceLike | None = None
    ) -> TensorValue:
        """A number or an array as a value of this graph; it reaches its device when the model is loaded.

        >>> from weft.graph import DeviceRef
        >>> with Graph("g") as graph:
        ...     graph.constant([1, 2, 3], "float32", DeviceRef.CPU(1))
        TensorValue(constant: f32[3] on cpu:1)
        """
        data = _array(value)
        if dtype is not None:
            data = data.to(torch_dtype(dtype))
        kind = TensorType(data.dtype, data.shape, DeviceRef.CPU() if device is None else device)
        return self.record(CONSTANT, (data,), [kind])[0]

    def own(self, value: GraphValue) -> None:
        """Check that a value belongs to this graph."""
        if value.graph is not self:
            raise ValueError(
                f"{value!r} belongs to graph {value.graph.name!r}, but is used in graph {self.name!r}: "
                "a value lives in one graph; make it an input of the other"
            )

    def _sizes(self, op: Op, value: Shape | Dim, shape: list[int], device: DeviceRef | None) -> TensorValue:
        self.known(Shape([value]) if isinstance(value, Dim) else value)
        kind = TensorType(torch.int64, shape, DeviceRef.CPU() if device is None else device)
        return self.record(op, (value, kind.device), [kind])[0]

    def record(
        self,
        op: Op,
        args: tuple[Argument, ...],
        types: Sequence[TensorType],
        *,
        kwargs: Mapping[str, Argument] | None = None,
        many: bool = False,
    ) -> list[TensorValue]:
        """Add one call of an op, and give one value for each of its results."""
        call = RecordedCall(op, args, kwargs or {}, tuple(types), many, where())
        nodes = tuple(_as_node(self, argument) for argument in args)
        named = {key: _as_node(self, argument) for key, argument in call.kwargs.items()}
        node = self.fx.create_node("call_function", op.kernel, nodes, named, name=op.name.removeprefix("aten."))  # type: ignore[arg-type]
        node.meta["call"] = call
        if not many:
            node.meta["types"] = call.types
            return [TensorValue(self, node, kind) for kind in call.types]
        return [self._part(node, i, kind) for i, kind in enumerate(types)]

    def known(self, sizes: Shape) -> None:
        """Check that a run will know these sizes."""
        unknown = sizes.symbols - self.symbols.keys()
        if unknown:
            raise ValueError(f"graph {self.name!r} knows no size {', '.join(sorted(unknown))}: give it to an input")

    def require(self, constraint: Constraint, error: type[ValueError | IndexError] = ValueError) -> None:
        """Check a rule between sizes now where they are known, and at every run where they are not."""
        decided = constraint.is_decided()
        if decided is False:
            raise error(f"{constraint.why}: that needs {constraint}")
        if decided is None:
            late = constraint.symbols & self.measured
            if late:
                raise error(
                    f"{constraint.why}: that needs {constraint}, but {', '.join(sorted(late))} is known only during the run"
                )
            self.constraints.append(constraint)

    def define(self, value: TensorValue) -> None:
        """Let the sizes of a value say what the new names in its shape stand for."""
        for i, dim in enumerate(value.shape):
            name = str(dim)
            if not dim.is_static and dim.symbols == {name} and name not in self.symbols:
                self.symbols[name] = (value.node, i)
                if value.node.op != "placeholder":
                    self.measured.add(name)
        unknown = value.shape.symbols - self.symbols.keys()
        if unknown:
            raise ValueError(
                f"{value!r} has a size in {', '.join(sorted(unknown))}, which no input and no earlier value has as a dim: "
                "give a dim that is just the name"
            )

    def _add_input(self, name: str, kind: GivenType) -> None:
        if isinstance(kind, LocalTensorType):
            kind = TensorType(torch_dtype(kind.dtype), kind.shape, kind.device)
        elif isinstance(kind, LocalBufferType):
            kind = BufferType(torch_dtype(kind.dtype), kind.shape, kind.device)
        if isinstance(kind, (TensorType, BufferType)):
            value: InputValue = self._argument(name, kind)
        elif isinstance(kind, (DistributedTensorType, DistributedBufferType, TensorLayout)):
            kinds: Sequence[TensorType | BufferType] = (
                shard_types(kind) if isinstance(kind, DistributedBufferType) else piece_types(kind)
            )
            names = [name] if len(kinds) == 1 else [f"{name}_{i}" for i in range(len(kinds))]
            pieces = [self._argument(piece_name, piece) for piece_name, piece in zip(names, kinds, strict=True)]
            value = DistributedValue(self, name, kind, pieces)
            for dim in kind.shape:
                if not dim.is_static and dim.symbols == {str(dim)} and str(dim) not in self.symbols:
                    self.sizes.append(str(dim))
                    self.symbols[str(dim)] = None
        else:
            raise TypeError(
                f"{name} of graph {self.name!r} needs a TensorType, a BufferType or a distributed type, but got {kind!r}"
            )
        self.inputs.append(value)

    def _argument(self, name: str, kind: TensorType | BufferType) -> TensorValue | BufferValue:
        node = self.fx.placeholder(name)
        made = TensorValue(self, node, kind) if isinstance(kind, TensorType) else BufferValue(self, node, kind)
        node.meta["input"] = made
        node.meta["types"] = (kind,)
        for i, dim in enumerate(kind.shape):
            if not dim.is_static and dim.symbols == {str(dim)}:
                self.symbols.setdefault(str(dim), (node, i))
        self.arguments.append(made)
        return made

    def _check_symbols(self) -> None:
        for value in self.inputs:
            unknown = value.shape.symbols - self.symbols.keys()
            if unknown:
                raise ValueError(
                    f"{value.name} of graph {self.name!r} is {value.type}, but no input has a dim that is just "
                    f"{', '.join(sorted(unknown))}: give one such a dim, so that a run says its size"
                )

    def _part(self, node: fx.Node, index: int, kind: TensorType) -> TensorValue:
        part = self.fx.create_node("call_function", PART.kernel, (node, index), name=f"{node.name}_{index}")
        part.meta["call"] = RecordedCall(PART, (node, index), {}, (kind,), False, node.meta["call"].where)
        part.meta["types"] = (kind,)
        return TensorValue(self, part, kind)

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name!r}: {len(self.inputs)} inputs, {len(self.fx.nodes) - len(self.arguments)} operations>"
        )

    def __str__(self) -> str:
        return text(self)


def where() -> str:
    """The user's file and line: the innermost frame that is not of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _numbered(types: Sequence[GivenType] | GivenType) -> Iterator[tuple[str, GivenType]]:
    if not isinstance(types, Sequence):
        raise TypeError(f"input_types is a sequence of types, but got one, {types!r}: use [{types!r}]")
    return ((f"input{i}", kind) for i, kind in enumerate(types))


def _as_node(graph: Graph, argument: Argument) -> Argument:
    """The argument with values replaced by their fx nodes; dims, devices and arrays stay as they are."""
    if isinstance(argument, GraphValue):
        graph.own(argument)
        return argument.node
    if isinstance(argument, (tuple, list)) and not isinstance(argument, Shape):
        return tuple(_as_node(graph, item) for item in argument)
    return argument


def _array(value: object) -> torch.Tensor:
    """The elements of a constant, copied, so that nobody can change them afterwards."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (bool, int, float, complex, list, tuple)):
        return torch.tensor(value)
    if isinstance(value, DLPackArray) and getattr(value, "shape", None) != ():
        return from_dlpack(value).clone()
    if isinstance(value, SupportsFloat) and hasattr(value, "dtype") and hasattr(value, "item"):
        return torch.tensor(value.item(), dtype=torch_dtype(str(value.dtype)))
    raise TypeError(
        f"a tensor is a TensorValue, a Shape, a Dim, a number, or an array of NumPy, torch or another DLPack library, but got {value!r}"
    )


def _listed(values: Iterable[GraphValue | DistributedValue]) -> str:
    return ", ".join(value.name for value in values)
