"""Which dim of a parameter one more mesh axis splits, and what is whole along that axis again."""

from __future__ import annotations

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

__all__ = ["check_axis", "split_further", "whole_along"]


def check_axis(mesh: DeviceMesh, axis: str, what: str) -> None:
    """Raises for an axis that a mesh does not have."""
    if axis not in mesh.axis_names:
        raise ValueError(
            f"{what} needs an axis of the mesh, but {mesh} has no {axis!r}: use one of {', '.join(map(repr, mesh.axis_names))}"
        )


def split_further(layout: Layout, shape: tuple[int, ...], axis: str) -> Layout:
    """A layout with one more axis, which splits the first dim that is large enough for it; a scalar stays whole.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 4, "tp": 2})
    >>> str(split_further(Layout(mesh, (("tp",), ())), (8, 8), "dp"))
    '(tp·dp, –)'
    """
    if not shape or axis in layout.dim_of:
        return layout
    size = layout.mesh.axis_size(axis)
    room = [own // layout.split_count(dim) for dim, own in enumerate(shape)]
    dim = next((dim for dim, own in enumerate(room) if own >= size), room.index(max(room)))
    return layout.with_split(dim, (*layout.splits[dim], axis))


def whole_along(layout: Layout, axis: str) -> Layout:
    """A layout without one of its axes.

    >>> from weft.sharding.mesh import make_mesh
    >>> str(whole_along(Layout(make_mesh({"dp": 4, "tp": 2}), (("tp", "dp"), ())), "dp"))
    '(tp, –)'
    """
    splits = [tuple(each for each in axes if each != axis) for axes in layout.splits]
    return Layout(layout.mesh, splits, layout.pending)
