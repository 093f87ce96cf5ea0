"""Random meshes, layouts and tensors."""

from hypothesis import strategies as st

from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.layout import Layout

AXES = ("a", "b", "c")


@st.composite
def meshes(draw: st.DrawFn, most_axes: int = 3, most: int = 4) -> DeviceMesh:
    sizes = draw(st.lists(st.integers(1, most), min_size=1, max_size=most_axes))
    return make_mesh(dict(zip(AXES, sizes, strict=False)))


@st.composite
def layouts(
    draw: st.DrawFn, mesh: DeviceMesh, rank: int, pending: bool = False, kinds: tuple[ReduceOp, ...] = (ReduceOp.SUM,)
) -> Layout:
    splits: list[list[str]] = [[] for _ in range(rank)]
    waiting: dict[str, ReduceOp] = {}
    kind = draw(st.sampled_from(kinds))
    for axis in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(-2 if pending else -1, rank - 1))
        if place >= 0:
            splits[place].append(axis)
        elif place == -2:
            waiting[axis] = kind
    return Layout(mesh, splits, waiting)


shapes = st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple)
