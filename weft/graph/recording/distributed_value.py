"""`DistributedValue`: one tensor of the graph that lies on a whole mesh, and its shards, one per device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, final

import torch
from torch import fx

from ...engine.memory import memory_of
from ...runtime.holding import holding
from ...sharding.dims import Dim, Shape, piece_size
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...sharding.types import DistributedBufferType, DistributedTensorType, TensorLayout
from .device_ref import DeviceRef
from .emitter import Emitter
from .op import Kind, Op
from .types import BufferType, TensorType, torch_dtype
from .values import BufferValue, TensorValue

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["DistributedKind", "DistributedValue", "layout_of", "piece_types", "shard_types"]

DistributedKind: TypeAlias = DistributedTensorType | DistributedBufferType | TensorLayout
"""The types of values on a mesh; `TensorLayout` also says layouts that placements cannot."""

Cut: TypeAlias = tuple[int, Dim, Dim]
"""A tensor dim, where a piece of it starts, and how long it is."""


def _local_shard(emit: Emitter, whole: TensorValue, cuts: tuple[Cut, ...], _device: DeviceRef) -> fx.Node:
    node = emit.node(whole)
    for dim, start, length in cuts:
        node = emit.view(torch.narrow, node, dim, start, length)
    return node


LOCAL_SHARD = Op("local_shard", _local_shard, Kind.MOVEMENT)
"""What one device holds of a value that is stored whole, since all devices share memory."""


@final
class DistributedValue:
    """A tensor of the graph on a whole mesh: `value[i]` is what device `i` of the mesh holds.

    >>> from weft.graph import Graph
    >>> from weft.sharding import Sharded, make_mesh
    >>> kind = DistributedTensorType("float32", ["batch", 4], make_mesh({"dp": 2}), [Sharded(0)])
    >>> with Graph("g", input_types=[kind]) as graph:
    ...     x = graph.inputs[0]
    ...     x, x[0], x[1]
    (DistributedValue(input0: f32[batch@dp, 4] on dp=2),
     TensorValue(local_shard: f32[(batch + 1) // 2, 4] on cpu:0),
     TensorValue(local_shard_1: f32[batch // 2, 4] on cpu:1))
    """

    __slots__ = ("_shards", "graph", "name", "pieces", "type")

    graph: Graph
    name: str
    type: DistributedKind
    pieces: tuple[TensorValue | BufferValue, ...]
    """What this process stores: the whole where all devices share memory, else one value per distinct shard."""

    def __init__(
        self,
        graph: Graph,
        name: str,
        type: DistributedKind,  # noqa: A002 - as the attribute
        pieces: Sequence[TensorValue | BufferValue],
    ) -> None:
        self.graph = graph
        self.name = name
        self.type = type
        self.pieces = tuple(pieces)
        self._shards: dict[int, TensorValue | BufferValue] = {}

    @property
    def layout(self) -> Layout:
        """How the value lies on its mesh."""
        return layout_of(self.type)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh the value lies on."""
        return self.type.mesh

    @property
    def shape(self) -> Shape:
        """The sizes of the whole."""
        return self.type.shape

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return torch_dtype(self.type.dtype)

    @property
    def shards(self) -> list[TensorValue | BufferValue]:
        """What each device holds, in mesh order."""
        return list(self)

    def __len__(self) -> int:
        return self.mesh.num_devices

    def __iter__(self) -> Iterator[TensorValue | BufferValue]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, device: int) -> TensorValue | BufferValue:
        if not -len(self) <= device < len(self):
            raise IndexError(f"{self!r} has {len(self)} shards, but got {device}")
        slot = device % len(self)
        if slot not in self._shards:
            self._shards[slot] = self._shard(slot)
        return self._shards[slot]

    def _shard(self, slot: int) -> TensorValue | BufferValue:
        if isinstance(self.type, DistributedBufferType):
            return self.pieces[slot]
        here = holding(self.layout)
        piece = self.pieces[here.piece_of[slot]]
        if memory_of(self.layout).pieces_are_shards:
            return piece
        device = DeviceRef.of(self.mesh.devices[slot])
        cuts, shape = _cuts(self.layout, self.shape, slot)
        kind = TensorType(self.dtype, shape, device)
        return self.graph.record(LOCAL_SHARD, (piece, cuts, device), [kind])[0]

    def __repr__(self) -> str:
        return f"DistributedValue({self.name}: {self.type})"


def layout_of(kind: DistributedKind) -> Layout:
    """How values of a type lie on their mesh.

    >>> from weft.sharding import Sharded, make_mesh
    >>> str(layout_of(DistributedTensorType("float32", [8], make_mesh({"dp": 2}), [Sharded(0)])))
    '(dp)'
    """
    return kind.layout if isinstance(kind, TensorLayout) else kind.mapping.layout(kind.rank)


def _cuts(layout: Layout, shape: Shape, slot: int) -> tuple[tuple[Cut, ...], Shape]:
    """Which part of each split dim a slot holds, exactly, also of sizes that are names."""
    mesh = layout.mesh
    coords = mesh.coords(slot)
    cuts, sizes = [], []
    for dim, (size, axes) in enumerate(zip(shape, layout.splits, strict=True)):
        start = Dim(0)
        for axis in axes:
            count, index = mesh.axis_size(axis), coords[mesh.axis_index(axis)]
            for before in range(index):
                start = start + piece_size(size, count, before)
            size = piece_size(size, count, index)
        if axes:
            cuts.append((dim, start, size))
        sizes.append(size)
    return tuple(cuts), Shape(sizes)


def piece_types(kind: DistributedTensorType | TensorLayout) -> list[TensorType]:
    """The types of what this process stores of a tensor.

    >>> from weft.sharding import Sharded, make_mesh
    >>> piece_types(DistributedTensorType("float32", [8], make_mesh({"dp": 2}), [Sharded(0)]))
    [TensorType(torch.float32, Shape([8]), DeviceRef.CPU(0))]
    """
    layout = layout_of(kind)
    here = holding(layout)
    if here.count == 0 or len(here.residence.owned) != layout.mesh.num_devices:
        if here.residence.on_paper:
            raise ValueError(
                f"a graph is for devices that are there, but {kind} lies on some that are not: make the mesh of CPU devices, "
                "as many as it needs, or run the program by weft.dryrun"
            )
        raise ValueError(
            f"a graph lies in one process, but {kind} lies on devices of several: record it on a mesh of weft.local_devices(), "
            "or use torch.compile, which takes programs of several processes"
        )
    return [
        TensorType(
            torch_dtype(kind.dtype),
            _cuts(layout, kind.shape, slot)[1] if memory_of(layout).pieces_are_shards else kind.shape,
            DeviceRef.of(layout.mesh.devices[slot]),
        )
        for slot in here.slots
    ]


def shard_types(kind: DistributedBufferType) -> list[BufferType]:
    """The types of the buffers that the devices hold, in mesh order.

    >>> from weft.sharding import Sharded, make_mesh
    >>> shard_types(DistributedBufferType("float32", [5], make_mesh({"dp": 2}), [Sharded(0)]))[1]
    BufferType(torch.float32, Shape([2]), DeviceRef.CPU(1))
    """
    layout = layout_of(kind)
    return [
        BufferType(torch_dtype(kind.dtype), _cuts(layout, kind.shape, slot)[1], DeviceRef.of(device))
        for slot, device in enumerate(layout.mesh.devices)
    ]
