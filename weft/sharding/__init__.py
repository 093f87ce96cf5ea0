"""The words of Weft: meshes, placements, mappings, shapes and distributed types.

Everything here is a frozen value; nothing here can communicate, and nothing imports torch.

>>> from weft.sharding import NamedMapping, P, make_mesh
>>> mesh = make_mesh({"dp": 2, "tp": 4})
>>> NamedMapping(mesh, P("dp", "tp")).to_placements()
(Sharded(0), Sharded(1))
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import ConversionError
from .mapping import DeviceMapping, NamedMapping, PlacementMapping
from .mesh import DeviceMesh, make_mesh, mesh_context
from .named import DimSpec, P, SpecEntry
from .placements import Partial, Placement, ReduceOp, Replicated, Sharded

if TYPE_CHECKING:
    from .dims import AlgebraicDim as AlgebraicDim
    from .dims import Dim as Dim
    from .dims import Shape as Shape
    from .dims import StaticDim as StaticDim
    from .dims import SymbolicDim as SymbolicDim
    from .dtype import DType as DType
    from .shard_shapes import global_shape_from_local, local_shard_shape_from_global, shard_shape
    from .types import DistributedBufferType, DistributedTensorType, DistributedType, TensorLayout

# Loaded when first touched: a mesh and a layout are said without them. Sizes and dtypes are spoken of in weft.graph;
# here they can be reached, for reading a repr back.
_LATER = {
    "shard_shapes": ("global_shape_from_local", "local_shard_shape_from_global", "shard_shape"),
    "types": ("DistributedBufferType", "DistributedTensorType", "DistributedType", "TensorLayout"),
    "dims": ("AlgebraicDim", "Dim", "Shape", "StaticDim", "SymbolicDim"),
    "dtype": ("DType",),
}
_HOME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "ConversionError",
    "DeviceMapping",
    "DeviceMesh",
    "DimSpec",
    "DistributedBufferType",
    "DistributedTensorType",
    "DistributedType",
    "NamedMapping",
    "P",
    "Partial",
    "Placement",
    "PlacementMapping",
    "ReduceOp",
    "Replicated",
    "Sharded",
    "SpecEntry",
    "TensorLayout",
    "global_shape_from_local",
    "local_shard_shape_from_global",
    "make_mesh",
    "mesh_context",
    "shard_shape",
]
