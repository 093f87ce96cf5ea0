"""One value on a mesh from one value per device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

from ...engine.memory import memory_of
from ...runtime.holding import holding
from ...sharding.layout import Layout
from ...sharding.types import DistributedBufferType, TensorLayout
from ..recording.device_ref import DeviceRef
from ..recording.distributed_value import DistributedKind, DistributedValue, layout_of, piece_types
from ..recording.graph import Graph
from ..recording.types import torch_dtype
from ..recording.values import TensorLike, TensorValue
from .inference import listed
from .shaping import concat, rebind

__all__ = ["distributed"]


def distributed(shards: Iterable[TensorLike], type: DistributedKind) -> DistributedValue:  # noqa: A002 - as the attribute
    """The value on a mesh whose shards, one per device in mesh order, are these.

    >>> from weft.graph import Graph
    >>> from weft.sharding import DistributedTensorType, Sharded, make_mesh
    >>> kind = DistributedTensorType("float32", ["batch", 4], make_mesh({"dp": 2}), [Sharded(0)])
    >>> with Graph("double", input_types=[kind]) as graph:
    ...     distributed([shard * 2 for shard in graph.inputs[0]], kind)
    DistributedValue(distributed: f32[batch@dp, 4] on dp=2)
    """
    if isinstance(type, DistributedBufferType):
        raise TypeError(f"a buffer is an input of the graph, so shards cannot be put together to {type}")
    graph = Graph.current()
    graph.known(type.shape)
    values = [graph.tensor(shard) for shard in shards]
    layout = layout_of(type)
    _check(values, type, layout)
    here = holding(layout)
    if memory_of(layout).pieces_are_shards:
        return DistributedValue(graph, "distributed", type, [values[slot] for slot in here.slots])
    home = DeviceRef.of(layout.mesh.devices[0])
    pieces = []
    for coords, kind in zip(here.coords, piece_types(type), strict=True):
        fixed = dict(zip(layout.mesh.axis_names, coords, strict=True))
        pieces.append(rebind(_joined(values, layout, 0, fixed, home), kind.shape))
    return DistributedValue(graph, "distributed", type, pieces)


def _joined(values: list[TensorValue], layout: Layout, dim: int, at: Mapping[str, int], home: DeviceRef) -> TensorValue:
    """The whole, from the shards that lie at these mesh coordinates in the dims before this one."""
    mesh = layout.mesh
    if dim == layout.rank:
        return values[mesh.slot([at[axis] for axis in mesh.axis_names])].to(home)
    axes = layout.splits[dim]
    places = product(*(range(mesh.axis_size(axis)) for axis in axes))
    return concat(
        [_joined(values, layout, dim + 1, {**at, **dict(zip(axes, place, strict=True))}, home) for place in places], dim
    )


def _check(values: list[TensorValue], kind: TensorLayout | DistributedKind, layout: Layout) -> None:
    mesh = layout.mesh
    if len(values) != mesh.num_devices:
        raise ValueError(f"distributed needs one shard per device of {mesh}, {mesh.num_devices}, but got {len(values)}")
    for i, (value, device) in enumerate(zip(values, mesh.devices, strict=True)):
        if value.device != DeviceRef.of(device) or value.dtype != torch_dtype(kind.dtype) or value.rank != layout.rank:
            raise ValueError(
                f"distributed: shard {i} of {kind} lies on {device} and has its dtype and rank, but got {listed([value.type])}"
            )
