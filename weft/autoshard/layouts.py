"""The layouts that are thought of: which mesh axes may split which dims of a tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh

__all__ = ["candidate_layouts", "is_nearly_even", "orders"]

_MOST_WASTE = 1.125
"""How much more than its share the device with most may have."""
_MOST_DIMS = 2
"""How many dims of a tensor are split at once."""


def is_nearly_even(size: int, count: int) -> bool:
    """Whether so many devices have about the same of a dim.

    >>> is_nearly_even(64, 8), is_nearly_even(50257, 8), is_nearly_even(9, 8)
    (True, True, False)
    """
    return size >= count and -(-size // count) * count <= _MOST_WASTE * size


def orders(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The orders in which axes may split one dim."""
    yield from permutations(axes)


def candidate_layouts(mesh: DeviceMesh, shape: Sequence[int], *, ordered: bool = False) -> list[Layout]:
    """The layouts of a tensor in which every axis splits one dim or none; `ordered`: in every order of the axes of one dim.

    >>> from weft.sharding.mesh import make_mesh
    >>> [str(layout) for layout in candidate_layouts(make_mesh({"dp": 2, "tp": 4}), (8, 3))]
    ['(–, –)', '(tp, –)', '(dp, –)', '(dp·tp, –)']
    """
    axes = [axis for axis in mesh.axis_names if mesh.axis_size(axis) > 1]
    found: dict[Layout, None] = {}
    for dims in product((None, *range(len(shape))), repeat=len(axes)):
        splits = [[axis for axis, dim in zip(axes, dims, strict=True) if dim == at] for at in range(len(shape))]
        if sum(map(bool, splits)) > _MOST_DIMS:
            continue
        if all(is_nearly_even(shape[at], mesh.group_size(names)) for at, names in enumerate(splits) if names):
            for arranged in product(*((orders(names) if ordered else [names]) for names in splits)):
                found[Layout(mesh, arranged)] = None
    return list(found)
