"""Symbolic graphs: record a program over tensors on many devices, compile it once, run it for any size.

>>> import torch
>>> from weft.graph import Graph, TensorType, compile, ops
>>> with Graph("scores", input_types=[TensorType("float32", ["batch", 3])]) as graph:
...     graph.output(ops.softmax(graph.inputs[0] * 2.0))
>>> model = compile(graph)
>>> model(torch.zeros(1, 3)), model(torch.zeros(5, 3)).shape
(tensor([[0.3333, 0.3333, 0.3333]]), torch.Size([5, 3]))
"""

from ..sharding.dims import AlgebraicDim, Dim, Shape, StaticDim, SymbolicDim
from . import ops
from .compiling import compile  # noqa: A004 - the document's name
from .gradients import grad
from .recording.capture import capture
from .recording.device_ref import DeviceRef
from .recording.distributed_value import DistributedValue
from .recording.errors import AxisError
from .recording.graph import Graph
from .recording.signals import Signals
from .recording.types import BufferType, TensorType
from .recording.values import BufferValue, HasBufferValue, HasTensorValue, TensorValue
from .running.model import Model
from .showing.cost import Cost, DeviceCost
from .showing.dot import to_dot
from .showing.picture import GraphPicture, visualize
from .steps.captured_step import CapturedStep, capture_step

__all__ = [
    "AlgebraicDim",
    "AxisError",
    "BufferType",
    "BufferValue",
    "CapturedStep",
    "Cost",
    "DeviceCost",
    "DeviceRef",
    "Dim",
    "DistributedValue",
    "Graph",
    "GraphPicture",
    "HasBufferValue",
    "HasTensorValue",
    "Model",
    "Shape",
    "Signals",
    "StaticDim",
    "SymbolicDim",
    "TensorType",
    "TensorValue",
    "capture",
    "capture_step",
    "compile",
    "grad",
    "ops",
    "to_dot",
    "visualize",
]
