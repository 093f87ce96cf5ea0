"""`capture`: the graph of an eager function over tensors on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from ...engine.sharded import wrap
from ...runtime.machine import torch_device
from ...sharding.mapping import named_mapping
from ...sharding.types import DistributedTensorType, TensorLayout
from ...tensor import Tensor
from .distributed_value import DistributedValue, layout_of, piece_types
from .graph import Graph, OutputValue
from .traced import TracedFunction, place
from .types import TensorType
from .values import TensorValue

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
        values = [value for value in graph.arguments if isinstance(value, TensorValue)]
        flat = [value for value in traced.record(graph, values) if value is not None]
        graph.output(*_outputs(graph, flat, layouts))
    return graph


def _type_of(kind: CaptureType) -> TensorType | DistributedTensorType | TensorLayout:
    if isinstance(kind, Tensor):
        return TensorLayout(kind.dtype, tuple(kind.shape), kind.mapping)
    if isinstance(kind, torch.Tensor):
        return TensorType(kind.dtype, tuple(kind.shape), place(kind.device))
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
) -> TracedFunction:
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
    return TracedFunction(second, {})


def _argument(value: object, pieces: Iterator[torch.Tensor]) -> torch.Tensor:
    if isinstance(value, DistributedValue):
        kind = value.type
        asked = kind.mapping if isinstance(kind, TensorLayout) else None
        return wrap(tuple(next(pieces) for _ in value.pieces), layout_of(kind), kind.shape.sizes, asked=asked)
    return next(pieces)


def _flat(result: object, layouts: list[TensorLayout | None]) -> tuple[torch.Tensor, ...]:
    if isinstance(result, Tensor):
        layouts.append(TensorLayout(result.dtype, tuple(result.shape), named_mapping(result._layout)))
        return result._value.pieces
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
