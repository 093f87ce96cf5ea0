"""Symbolic graphs: record a program over tensors on many devices, compile it once, run it for any size.

>>> import torch
>>> from weft.graph import Graph, TensorType, compile, ops
>>> with Graph("scores", input_types=[TensorType("float32", ["batch", 3])]) as graph:
...     graph.output(ops.softmax(graph.inputs[0] * 2.0))
>>> model = compile(graph)
>>> model(torch.zeros(1, 3)), model(torch.zeros(5, 3)).shape
(tensor([[0.3333, 0.3333, 0.3333]]), torch.Size([5, 3]))
"""

from weft.graph import ops
from weft.graph.compiling import compile  # noqa: A004 - the document's name
from weft.graph.gradients import grad
from weft.graph.recording.capture import capture
from weft.graph.recording.device_ref import DeviceRef
from weft.graph.recording.distributed_value import DistributedValue
from weft.graph.recording.errors import AxisError
from weft.graph.recording.graph import Graph
from weft.graph.recording.signals import Signals
from weft.graph.recording.types import BufferType, TensorType
from weft.graph.recording.values import BufferValue, HasBufferValue, HasTensorValue, TensorValue
from weft.graph.running.model import Model
from weft.graph.showing.cost import Cost, DeviceCost
from weft.graph.showing.dot import to_dot
from weft.graph.showing.picture import GraphPicture, visualize
from weft.graph.steps.captured_step import CapturedStep, capture_step
from weft.sharding.dims import AlgebraicDim, Dim, Shape, StaticDim, SymbolicDim

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
