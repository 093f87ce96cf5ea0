"""Values from nothing: constants, fills, ranges."""

from __future__ import annotations

import torch

from ...sharding.dims import Dim, DimLike, Shape, ShapeLike
from ..recording.constraint import Constraint
from ..recording.device_ref import DeviceLike, DeviceRef
from ..recording.graph import Graph
from ..recording.op import Op
from ..recording.types import DTypeLike, TensorType, torch_dtype
from ..recording.values import TensorLike, TensorValue


def _full(shape: tuple[int, ...], value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)


def _range(start: int, stop: int, step: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.arange(start, stop, step, dtype=dtype, device=device)


FULL = Op("full", _full)
ARANGE = Op("arange", _range)


def constant(value: TensorLike, dtype: DTypeLike | None = None, device: DeviceLike | None = None) -> TensorValue:
    """A number or an array as a value of the graph; it reaches its device when the model is loaded.

    >>> from weft.graph import DeviceRef, Graph
    >>> with Graph("g") as graph:
    ...     constant([1.0, 2.0]), constant(3, "int8", DeviceRef.CPU(2))
    (TensorValue(constant: f32[2] on cpu:0), TensorValue(constant_1: i8[] on cpu:2))
    """
    return Graph.current().constant(value, dtype, device)


def full(shape: ShapeLike, value: float, dtype: DTypeLike = "float32", device: DeviceLike | None = None) -> TensorValue:
    """A tensor with one number everywhere.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["batch"])]) as graph:
    ...     full(["batch", 4], 1.5)
    TensorValue(full: f32[batch, 4] on cpu:0)
    """
    graph = Graph.current()
    kind = TensorType(dtype, shape, DeviceRef.CPU() if device is None else device)
    graph.known(kind.shape)
    return graph.record(FULL, (kind.shape, value, kind.dtype, kind.device), [kind])[0]


def zeros(shape: ShapeLike, dtype: DTypeLike = "float32", device: DeviceLike | None = None) -> TensorValue:
    """A tensor of zeros.

    >>> from weft.graph import Graph
    >>> with Graph("g") as graph:
    ...     zeros([2, 3], "int64")
    TensorValue(full: i64[2, 3] on cpu:0)
    """
    return full(shape, 0, dtype, device)


def ones(shape: ShapeLike, dtype: DTypeLike = "float32", device: DeviceLike | None = None) -> TensorValue:
    """A tensor of ones.

    >>> from weft.graph import Graph
    >>> with Graph("g") as graph:
    ...     ones([2, 3])
    TensorValue(full: f32[2, 3] on cpu:0)
    """
    return full(shape, 1, dtype, device)


def arange(
    start: DimLike, stop: DimLike, step: int = 1, dtype: DTypeLike = "int64", device: DeviceLike | None = None
) -> TensorValue:
    """The whole numbers from `start` up to, not including, `stop`; both may be sizes.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("g", input_types=[TensorType("float32", ["seq"])]) as graph:
    ...     arange(0, "seq"), arange(0, 10, 3)
    (TensorValue(arange: i64[seq] on cpu:0), TensorValue(arange_1: i64[4] on cpu:0))
    """
    graph = Graph.current()
    if step < 1:
        raise ValueError(f"arange counts up by 1 or more, but got the step {step}")
    low, high = Dim.of(start), Dim.of(stop)
    graph.known(Shape([low, high]))
    graph.require(Constraint(low, "<=", high, f"arange counts up from {low} to {high}"))
    on = DeviceRef.CPU() if device is None else DeviceRef.of(device)
    kind = TensorType(torch_dtype(dtype), [(high - low + (step - 1)) // step], on)
    return graph.record(ARANGE, (low, high, step, kind.dtype, on), [kind])[0]
