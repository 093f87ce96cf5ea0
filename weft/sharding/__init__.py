"""The words of Weft: meshes, placements, mappings, shapes and distributed types.

Everything here is a frozen value; nothing here can communicate, and nothing imports torch.

>>> from weft.sharding import NamedMapping, P, make_mesh
>>> mesh = make_mesh({"dp": 2, "tp": 4})
>>> NamedMapping(mesh, P("dp", "tp")).to_placements()
(Sharded(0), Sharded(1))
"""

from ..errors import ConversionError
from .mapping import DeviceMapping, NamedMapping, PlacementMapping
from .mesh import DeviceMesh, make_mesh, mesh_context
from .named import DimSpec, P, SpecEntry
from .placements import Partial, Placement, ReduceOp, Replicated, Sharded
from .shard_shapes import global_shape_from_local, local_shard_shape_from_global, shard_shape
from .types import DistributedBufferType, DistributedTensorType, DistributedType, TensorLayout

# Sizes and dtypes are spoken of in weft.graph; here they can be reached, for reading a repr back.
from .dims import AlgebraicDim as AlgebraicDim, Dim as Dim, StaticDim as StaticDim, SymbolicDim as SymbolicDim  # isort: skip
from .dtype import DType as DType  # isort: skip
from .shape import Shape as Shape  # isort: skip

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
