"""How much there is to look at between two meshes: every cell and all who could collect it, a few of these, or neither."""

from __future__ import annotations

from ...sharding.layout import Layout
from ..boxes.census import Shape
from ..step import live_pending
from .cells import cell_count

__all__ = ["FEW", "is_small", "is_wieldy"]

MOST_CELLS = 512
"""Cells up to which a movement is looked at cell by cell, between small meshes and between large ones."""
MOST_DEVICES = 64
"""Devices of a mesh up to which it is small: looking at all takes milliseconds."""
MOST_TRANSFERS = 1 << 16
"""Transfers up to which those between larger ones are looked at: within a tenth of a second."""
FEW = 16
"""Holders that are asked to collect a cell, at least, where there are too many to ask all."""


def is_small(source: Layout, target: Layout, shape: Shape) -> bool:
    """Whether all who could collect a cell are looked at.

    >>> from weft.sharding.mesh import make_mesh
    >>> from weft.sharding.placements import ReduceOp
    >>> few, many = make_mesh({"a": 4}), make_mesh({"b": 256})
    >>> is_small(Layout(few, ((),), {"a": ReduceOp.SUM}), Layout(many, (("b",),)), (1024,))
    True
    >>> is_small(Layout(many, ((),), {"b": ReduceOp.SUM}), Layout(make_mesh({"c": 256}), (("c",),)), (1024,))
    False
    """
    if max(source.mesh.num_devices, target.mesh.num_devices) <= MOST_DEVICES:
        return cell_count(source, target, shape) <= MOST_CELLS
    # Contributions come to each sum, and it goes to all that want it.
    return _sums(source, target, shape) * (_contributions(source) + _replicas(target)) <= MOST_TRANSFERS


def is_wieldy(source: Layout, target: Layout, shape: Shape) -> bool:
    """Whether a movement is looked at cell by cell, with few collectors for each where it has to be.

    Each contribution has one holder then, so that all sums are of the same ones, and one result goes to whoever wants it.

    >>> from weft.sharding.mesh import make_mesh
    >>> from weft.sharding.placements import ReduceOp
    >>> here, there = make_mesh({"b": 256}), make_mesh({"c": 256})
    >>> is_wieldy(Layout(here, ((),), {"b": ReduceOp.SUM}), Layout(there, (("c",),)), (1024,))
    True
    >>> is_wieldy(Layout(here, ((),), {"b": ReduceOp.SUM}), Layout(there, ((),)), (1024,))
    False
    """
    if is_small(source, target, shape):
        return True
    held_once = all(source.mesh.axis_size(axis) == 1 for axis in source.replicated_axes)
    if not held_once or not live_pending(source) or live_pending(target):
        return False
    if cell_count(source, target, shape) > MOST_CELLS:
        return False
    return _sums(source, target, shape) * (FEW + _replicas(target)) <= MOST_TRANSFERS


def _sums(source: Layout, target: Layout, shape: Shape) -> int:
    """About how many there are: a cell is one, and each device takes a part of another's."""
    return cell_count(source, target, shape) + source.mesh.num_devices + target.mesh.num_devices


def _contributions(layout: Layout) -> int:
    return layout.mesh.group_size(layout.pending_axes)


def _replicas(layout: Layout) -> int:
    return layout.mesh.group_size(layout.replicated_axes)
