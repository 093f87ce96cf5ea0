"""Distributed types: what is known of a tensor on a mesh without its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

from ..devices import Device
from ..frozen import Unchanging
from .dims import Dim, DimLike, Shape, ShapeLike
from .dtype import DType, DTypeLike
from .layout import Layout
from .mapping import DeviceMapping, PlacementMapping
from .mesh import DeviceMesh
from .placements import Placement, Sharded
from .shard_shapes import local_shapes

__all__ = [
    "DistributedBufferType",
    "DistributedTensorType",
    "DistributedType",
    "LocalBufferType",
    "LocalTensorType",
    "TensorLayout",
]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _LocalType:
    """What one device holds: a dtype, a shape and the device."""

    dtype: DType
    shape: Shape
    device: Device

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, device: Device) -> None:
        if not isinstance(device, Device):
            raise TypeError(f"a device is CPU(id) or Accelerator(id), but got {device!r}: use CPU(0)")
        object.__setattr__(self, "dtype", DType.of(dtype))
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "device", device)

    @property
    def rank(self) -> int:
        """How many dims there are."""
        return self.shape.rank

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype!r}, {self.shape!r}, {self.device!r})"

    def __str__(self) -> str:
        return f"{self.dtype.short}{self.shape} on {self.device}"


@final
class LocalTensorType(_LocalType):
    """The type of the shard that one device holds of a tensor.

    >>> from weft.devices import CPU
    >>> str(LocalTensorType("f32", [2, "batch_dp"], CPU(1)))
    'f32[2, batch_dp] on cpu:1'
    """

    __slots__ = ()


@final
class LocalBufferType(_LocalType):
    """The type of the shard that one device holds of a mutable buffer.

    >>> from weft.devices import CPU
    >>> str(LocalBufferType("u8", [64], CPU(0)))
    'u8[64] on cpu:0'
    """

    __slots__ = ()


class DistributedType(Unchanging, ABC):
    """Shared state and shard-shape logic for distributed type descriptors.

    >>> from weft.sharding import make_mesh
    >>> kind = DistributedTensorType("f32", [8, 6], make_mesh({"dp": 2}), [Sharded(-1)])
    >>> isinstance(kind, DistributedType), kind.placements, str(kind)
    (True, (Sharded(1),), 'f32[8, 6@dp] on dp=2')
    """

    __slots__ = ("__dict__", "dtype", "mesh", "placements", "shape")

    dtype: DType
    shape: Shape
    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, mesh: DeviceMesh, placements: Iterable[Placement]) -> None:
        mapping, whole = PlacementMapping(mesh, placements), Shape(shape)
        mapping.layout(whole.rank)  # the rank is known here, so a dim that is out of range is told here
        counted = (Sharded(p.axis % whole.rank) if isinstance(p, Sharded) else p for p in mapping.placements)
        object.__setattr__(self, "dtype", DType.of(dtype))
        object.__setattr__(self, "shape", whole)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "placements", tuple(counted))

    @property
    @abstractmethod
    def local_types(self) -> tuple[LocalTensorType, ...] | tuple[LocalBufferType, ...]:
        """What each device holds, in row-major mesh order."""

    @property
    def rank(self) -> int:
        """How many dims the global tensor has.

        >>> from weft.sharding import make_mesh
        >>> DistributedTensorType("f32", [8, 6], make_mesh({"dp": 2}), [Sharded(0)]).rank
        2
        """
        return self.shape.rank

    @cached_property
    def mapping(self) -> PlacementMapping:
        """The mapping that lays the tensor out.

        >>> from weft.sharding import make_mesh
        >>> DistributedTensorType("f32", [8], make_mesh({"dp": 2}), [Sharded(0)]).mapping.placements
        (Sharded(0),)
        """
        return PlacementMapping(self.mesh, self.placements)

    @cached_property
    def local_shapes(self) -> tuple[Shape, ...]:
        """The shape that each device holds, in row-major mesh order.

        >>> from weft.sharding import make_mesh
        >>> DistributedTensorType("f32", [5], make_mesh({"dp": 2}), [Sharded(0)]).local_shapes
        (Shape([3]), Shape([2]))
        """
        return local_shapes(self.mapping.layout(self.rank), self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistributedType) or type(self) is not type(other):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __reduce__(self) -> tuple[type[DistributedType], tuple[object, ...]]:
        return type(self), self._fields()

    def _fields(self) -> tuple[DType, Shape, DeviceMesh, tuple[Placement, ...]]:
        return self.dtype, self.shape, self.mesh, self.placements

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._fields()))})"

    def __str__(self) -> str:
        return _shown(self.dtype, self.shape, self.mapping.layout(self.rank))


@final
class DistributedTensorType(DistributedType):
    """A symbolic type for a tensor distributed across a device mesh.

    >>> from weft.sharding import make_mesh
    >>> kind = DistributedTensorType("f32", [5, "batch"], make_mesh({"dp": 2}), [Sharded(0)])
    >>> [str(local) for local in kind.local_types]
    ['f32[3, batch] on cpu:0', 'f32[2, batch] on cpu:1']
    """

    __slots__ = ()

    @property
    def local_types(self) -> tuple[LocalTensorType, ...]:
        """What each device holds, in row-major mesh order.

        >>> from weft.sharding import make_mesh
        >>> DistributedTensorType("f32", [4], make_mesh({"dp": 2}), [Sharded(0)]).local_types[1]
        LocalTensorType(DType.float32, Shape([2]), CPU(1))
        """
        placed = zip(self.local_shapes, self.mesh.devices, strict=True)
        return tuple(LocalTensorType(self.dtype, shape, device) for shape, device in placed)


@final
class DistributedBufferType(DistributedType):
    """A symbolic type for a mutable buffer distributed across a device mesh.

    >>> from weft.sharding import make_mesh
    >>> DistributedBufferType("u8", [64], make_mesh({"dp": 4}), [Sharded(0)]).local_shapes[0]
    Shape([16])
    """

    __slots__ = ()

    @property
    def local_types(self) -> tuple[LocalBufferType, ...]:
        """What each device holds, in row-major mesh order.

        >>> from weft.sharding import make_mesh
        >>> DistributedBufferType("u8", [64], make_mesh({"dp": 2}), [Sharded(0)]).local_types[1]
        LocalBufferType(DType.uint8, Shape([32]), CPU(1))
        """
        placed = zip(self.local_shapes, self.mesh.devices, strict=True)
        return tuple(LocalBufferType(self.dtype, shape, device) for shape, device in placed)


@final
@dataclass(frozen=True, slots=True, init=False, repr=False)
class TensorLayout:
    """Metadata snapshot of a distributed tensor for rule evaluation.

    >>> from weft.sharding import NamedMapping, P, make_mesh
    >>> at = TensorLayout("bf16", [8, 6], NamedMapping(make_mesh({"dp": 2, "tp": 3}), P(("tp", "dp"), None)))
    >>> str(at), at.rank, at.nbytes
    ('bf16[8@tp·dp, 6] on dp=2 × tp=3', 2, StaticDim(96))
    """

    dtype: DType
    shape: Shape
    mapping: DeviceMapping

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, mapping: DeviceMapping) -> None:
        if not isinstance(mapping, DeviceMapping):
            raise TypeError(
                f"a TensorLayout needs a mapping, but got {mapping!r}: use NamedMapping(mesh, spec) or "
                "PlacementMapping(mesh, placements)"
            )
        object.__setattr__(self, "dtype", DType.of(dtype))
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "mapping", mapping)
        mapping.layout(self.shape.rank)

    @property
    def rank(self) -> int:
        """How many dims the tensor has."""
        return self.shape.rank

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh the tensor lies on."""
        return self.mapping.mesh

    @property
    def layout(self) -> Layout:
        """Which mesh axes split each dim, and what is pending."""
        return self.mapping.layout(self.rank)

    @property
    def nbytes(self) -> Dim:
        """How many bytes the global tensor takes."""
        return self.shape.numel() * self.dtype.itemsize

    @property
    def local_shapes(self) -> tuple[Shape, ...]:
        """The shape that each device holds, in row-major mesh order."""
        return local_shapes(self.layout, self.shape)

    def subs(self, values: Mapping[str, DimLike]) -> TensorLayout:
        """The same snapshot with names replaced by sizes."""
        return TensorLayout(self.dtype, self.shape.subs(values), self.mapping)

    def __repr__(self) -> str:
        return f"TensorLayout({self.dtype!r}, {self.shape!r}, {self.mapping!r})"

    def __str__(self) -> str:
        return _shown(self.dtype, self.shape, self.layout)


def _shown(dtype: DType, shape: Shape, layout: Layout) -> str:
    dims = ", ".join(
        f"{dim}@{'·'.join(axes)}" if axes else str(dim) for dim, axes in zip(shape, layout.splits, strict=True)
    )
    pending = "".join(f", pending {op}@{axis}" for axis, op in layout.pending)
    return f"{dtype.short}[{dims}] on {layout.mesh}{pending}"
