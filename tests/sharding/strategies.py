"""Random meshes, layouts and shapes, in the sizes that the laws are stated for."""

from hypothesis import strategies as st

from weft.devices import CPU, Accelerator
from weft.sharding import NamedMapping, P, Partial, PlacementMapping, ReduceOp, Replicated, Sharded
from weft.sharding.mesh import DeviceMesh

AXES = ("dp", "tp", "sp", "ep")
OPS = st.sampled_from(list(ReduceOp))


@st.composite
def meshes(draw, max_axes=4, max_size=6):
    """A mesh of 1 to 4 axes, on CPUs, on accelerators or on one device for all."""
    shape = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_axes))
    names = draw(st.permutations(AXES))[: len(shape)]
    count = 1
    for size in shape:
        count *= size
    kind, first = draw(st.sampled_from([CPU, Accelerator])), draw(st.integers(0, 3))
    devices = [kind(first)] * count if draw(st.booleans()) else [kind(first + i) for i in range(count)]
    return DeviceMesh(devices, shape, names)


def shapes(rank, max_size=12):
    return st.lists(st.integers(0, max_size), min_size=rank, max_size=rank).map(tuple)


ranks = st.integers(0, 4)


@st.composite
def placement_mappings(draw, rank, mesh=None, partial=True):
    """Every placement on every axis; dims may count from the end."""
    mesh = draw(meshes()) if mesh is None else mesh
    kinds = [st.just(Replicated())]
    if rank:
        kinds.append(st.integers(-rank, rank - 1).map(Sharded))
    if partial:
        kinds.append(OPS.map(Partial))
    return PlacementMapping(mesh, draw(st.tuples(*[st.one_of(kinds)] * mesh.ndim)))


@st.composite
def named_mappings(draw, rank, mesh=None):
    """Every way to give the axes of a mesh to dims, in any order, to pending reductions, or to nothing."""
    mesh = draw(meshes()) if mesh is None else mesh
    entries: list[list[str]] = [[] for _ in range(rank)]
    unreduced = {}
    for axis in draw(st.permutations(mesh.axis_names)):
        job = draw(st.integers(-2, rank - 1))
        if job >= 0:
            entries[job].append(axis)
        elif job == -1:
            unreduced[axis] = draw(OPS)
    return NamedMapping(mesh, P(*map(tuple, entries)), unreduced)


@st.composite
def mapped_shapes(draw):
    """A mapping in either vocabulary and a shape it fits."""
    rank = draw(ranks)
    mapping = draw(st.one_of(placement_mappings(rank), named_mappings(rank)))
    return mapping, draw(shapes(rank))
