"""Boxes of the global index space: which one each device holds, and what is asked of them. Nothing here loops over devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from .layout import Layout
from .mesh import DeviceMesh, Slot

__all__ = [
    "Box",
    "Interval",
    "box",
    "box_at",
    "box_shape",
    "box_text",
    "common",
    "has_elements",
    "holders",
    "interval",
    "is_stretch",
    "most_elements",
    "piece",
    "resized",
    "slots_at",
    "volume",
    "whole_box",
    "within",
]

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


def whole_box(shape: Sequence[int]) -> Box:
    """The box that is all of a tensor.

    >>> whole_box((3, 2))
    ((0, 3), (0, 2))
    """
    return tuple((0, size) for size in shape)


def volume(where: Box) -> int:
    """How many elements a box has.

    >>> volume(((0, 3), (2, 4)))
    6
    """
    return math.prod(stop - start for start, stop in where)


def has_elements(where: Box) -> bool:
    """Whether a box has any.

    >>> has_elements(((0, 3), (2, 2)))
    False
    """
    return all(start < stop for start, stop in where)


def box_text(where: Box) -> str:
    """A box as indices are written.

    >>> box_text(((0, 3), (2, 4)))
    '[0:3, 2:4]'
    """
    return f"[{', '.join(f'{start}:{stop}' for start, stop in where)}]"


def resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """A shape with another size along one dim.

    >>> resized((4, 6), 0, 1)
    (1, 6)
    """
    return (*shape[:dim], size, *shape[dim + 1 :])


def most_elements(layout: Layout, shape: Sequence[int]) -> int:
    """How many elements of a tensor the device with the most has.

    >>> from weft.sharding.mesh import make_mesh
    >>> most_elements(Layout(make_mesh({"tp": 4}), (("tp",), ())), (10, 3))
    9
    """
    return math.prod(-(-size // layout.split_count(dim)) for dim, size in enumerate(shape))


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


def common(first: Box, second: Box) -> Box | None:
    """The box that two boxes share, if any.

    >>> common(((0, 4),), ((2, 6),)), common(((0, 2),), ((2, 4),))
    (((2, 4),), None)
    """
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return shared if has_elements(shared) else None


def slots_at(mesh: DeviceMesh, known: Mapping[int, int]) -> Iterator[Slot]:
    """The slots with these coordinates along some axes, which are numbers here, in mesh order.

    >>> from weft.sharding.mesh import make_mesh
    >>> list(slots_at(make_mesh({"dp": 2, "tp": 4}), {0: 1}))
    [4, 5, 6, 7]
    """
    ranges = [range(known[i], known[i] + 1) if i in known else range(n) for i, n in enumerate(mesh.mesh_shape)]
    return map(mesh.slot, product(*ranges))


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
    return tuple(slots_at(mesh, {i: at for i, at in enumerate(mesh.coords(slot)) if i not in free}))
