"""Meshes, layouts and shapes to test laws with."""

from __future__ import annotations

from hypothesis import strategies as st

from weft.devices import CPU
from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.layout import Layout

SIZES = st.integers(0, 9)
KINDS = st.sampled_from([ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PROD])


@st.composite
def meshes(draw, max_axes=3, sizes=(1, 2, 2, 3, 4)) -> DeviceMesh:
    count = draw(st.integers(1, max_axes))
    return make_mesh({axis: draw(st.sampled_from(sizes)) for axis in "abc"[:count]})


@st.composite
def layouts(draw, mesh: DeviceMesh, rank: int, op: ReduceOp | None = None) -> Layout:
    """Any layout; with a reduction, axes may hold it pending."""
    splits: list[list[str]] = [[] for _ in range(rank)]
    pending = {}
    for axis in draw(st.permutations(mesh.axis_names)):
        choice = draw(st.integers(-2 if op else -1, rank - 1))
        if choice >= 0:
            splits[choice].append(axis)
        elif choice == -2:
            pending[axis] = op
    return Layout(mesh, splits, pending)


@st.composite
def transitions(draw, *, pending: bool = False, count: int = 2):
    """Layouts of one tensor on one mesh, and its shape."""
    mesh = draw(meshes())
    shape = tuple(draw(st.lists(SIZES, min_size=0, max_size=3)))
    op = draw(KINDS) if pending else None
    return *(draw(layouts(mesh, len(shape), op)) for _ in range(count)), shape


@st.composite
def crossings(draw, *, pending: bool = False):
    """Layouts of one tensor on two meshes that may share devices, and its shape."""
    shape = tuple(draw(st.lists(SIZES, min_size=0, max_size=3)))
    op = ReduceOp.SUM if pending else None
    ends = []
    for _ in range(2):
        like = draw(meshes(max_axes=2))
        ids = draw(st.permutations(range(like.num_devices + 3)))[: like.num_devices]
        mesh = DeviceMesh([CPU(i) for i in ids], like.mesh_shape, like.axis_names)
        ends.append(draw(layouts(mesh, len(shape), op)))
    return *ends, shape
