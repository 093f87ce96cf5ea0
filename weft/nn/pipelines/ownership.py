"""Which meshes this process has a part of."""

from __future__ import annotations

from ...runtime.processes.mesh_processes import is_elsewhere
from ...sharding.mesh import DeviceMesh

__all__ = ["is_here"]


def is_here(mesh: DeviceMesh) -> bool:
    """Whether this process owns a device of a mesh.

    >>> from weft.sharding import make_mesh
    >>> is_here(make_mesh({"tp": 2}))
    True
    """
    return not is_elsewhere(mesh)
