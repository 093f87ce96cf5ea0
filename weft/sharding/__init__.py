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

__all__ = [
    "ConversionError",
    "DeviceMapping",
    "DeviceMesh",
    "DimSpec",
    "NamedMapping",
    "P",
    "Partial",
    "Placement",
    "PlacementMapping",
    "ReduceOp",
    "Replicated",
    "Sharded",
    "SpecEntry",
    "make_mesh",
    "mesh_context",
]
