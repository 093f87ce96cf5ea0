"""Which box of the global index space each device holds. Nothing here loops over devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from .layout import Layout
from .mesh import Slot

__all__ = ["Box", "Interval", "box", "box_at", "box_shape", "holders", "interval", "is_stretch", "piece", "within"]

Interval = tuple[int, int]
"""Start and stop, half open."""

Box = tuple[Interval, ...]
"""One interval per tensor dim."""


def piece(size: int, count: int, index: int) -> Interval:
    """Where piece `index` lies when `size` is cut into `count` balanced pieces.

    >>> [piece(10, 4, i) for i in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    quotient, more = size // count, size % count
    start = index * quotient + min(index, more)
    return start, start + quotient + (1 if index < more else 0)


def interval(size: int, cuts: Sequence[tuple[int, int]]) -> Interval:
    """Where nested cuts, (count, index) each, major first, end up in `range(size)`.

    >>> interval(10, [(2, 1), (2, 0)])
    (5, 8)
    """
    start, stop = 0, size
    for count, index in cuts:
        low, high = piece(stop - start, count, index)
        start, stop = start + low, start + high
    return start, stop


def box(layout: Layout, shape: Sequence[int], slot: Slot) -> Box:
    """The box that one slot holds of a tensor of this shape.

    >>> from weft.sharding.mesh import make_mesh
    >>> mesh = make_mesh({"dp": 2, "tp": 4})
    >>> box(Layout(mesh, (("dp",), ("tp",))), (10, 8), 5)
    ((5, 10), (2, 4))
    """
    return box_at(layout, shape, layout.mesh.coords(slot))


def box_at(layout: Layout, shape: Sequence[int], coords: Sequence[int]) -> Box:
    """The box held at these mesh coordinates.

    >>> from weft.sharding.mesh import make_mesh
    >>> box_at(Layout(make_mesh({"dp": 2}), (("dp",),)), (5,), (0,))
    ((0, 3),)
    """
    index_of, sizes = layout.mesh.index_of, layout.mesh.mesh_shape
    result = []
    for size, axes in zip(shape, layout.splits, strict=True):
        if axes:
            indices = [index_of[axis] for axis in axes]
            result.append(interval(size, [(sizes[i], coords[i]) for i in indices]))
        else:
            result.append((0, size))
    return tuple(result)


def box_shape(where: Box) -> tuple[int, ...]:
    """The shape of a box.

    >>> box_shape(((5, 10), (2, 4)))
    (5, 2)
    """
    return tuple(stop - start for start, stop in where)


def is_stretch(inner: Box, outer: Box) -> bool:
    """Whether the elements of a box lie one after another in the memory of a box that contains it.

    >>> is_stretch(((1, 3), (0, 4)), ((0, 4), (0, 4))), is_stretch(((0, 4), (1, 3)), ((0, 4), (0, 4)))
    (True, False)
    """
    is_open = True  # until a dim is cut: all before it need to have a single index
    for (low, high), whole in zip(reversed(inner), reversed(outer), strict=True):
        if not is_open and high - low != 1:
            return False
        is_open = is_open and (low, high) == whole
    return True


def within(inner: Box, outer: Box) -> Box:
    """A box in the coordinates of another box that contains it.

    >>> within(((6, 8),), ((5, 10),))
    ((1, 3),)
    """
    return tuple((start - base, stop - base) for (start, stop), (base, _) in zip(inner, outer, strict=True))


def holders(layout: Layout, slot: Slot, *, same_contribution: bool = True) -> tuple[Slot, ...]:
    """The slots that hold the same box as this one, itself included, in mesh order.

    With `same_contribution=False`, also those that hold another contribution to a pending reduction of that box.

    >>> from weft.sharding.mesh import make_mesh
    >>> holders(Layout(make_mesh({"dp": 2, "tp": 2}), (("tp",),)), 1)
    (1, 3)
    """
    mesh = layout.mesh
    axes = layout.replicated_axes if same_contribution else (*layout.replicated_axes, *layout.pending_axes)
    free = {mesh.index_of[axis] for axis in axes}
    coords = mesh.coords(slot)
    ranges = [range(n) if i in free else (coords[i],) for i, n in enumerate(mesh.mesh_shape)]
    return tuple(mesh.slot(at) for at in product(*ranges))
