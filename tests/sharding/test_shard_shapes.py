"""The laws of shard shapes: they add up, agree with the boxes, and lead back to the global shape."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.strategies import placement_mappings, ranks, shapes
from weft.sharding import (
    Partial,
    PlacementMapping,
    Replicated,
    Sharded,
    global_shape_from_local,
    local_shard_shape_from_global,
    make_mesh,
    shard_shape,
)
from weft.sharding.dims import Shape
from weft.sharding.geometry import box, box_shape

DIMS = st.integers(0, 12) | st.sampled_from(["batch", "seq", "batch * 2 + 1", "batch * seq", "(batch + 1) * 4"])


@st.composite
def cases(draw, dims=None):
    rank = draw(ranks)
    mapping = draw(placement_mappings(rank))
    return (
        draw(shapes(rank) if dims is None else st.lists(dims, min_size=rank, max_size=rank)),
        mapping.mesh,
        mapping.placements,
    )


@given(cases())
def test_shard_shapes_are_the_shapes_of_the_boxes(case):
    shape, mesh, placements = case
    layout = PlacementMapping(mesh, placements).layout(len(shape))
    assert local_shard_shape_from_global(shape, mesh, placements) == tuple(
        box_shape(box(layout, shape, slot)) for slot in range(mesh.num_devices)
    )


@given(cases())
def test_elements_add_up_to_the_global_size(case):
    shape, mesh, placements = case
    locals_ = local_shard_shape_from_global(shape, mesh, placements)
    copies = math.prod(
        size for size, placement in zip(mesh.mesh_shape, placements, strict=True) if not isinstance(placement, Sharded)
    )
    assert sum(local.numel() for local in locals_) == math.prod(shape) * copies


@given(cases(DIMS))
def test_local_to_global_to_local_is_exact(case):
    shape, mesh, placements = case
    local = local_shard_shape_from_global(shape, mesh, placements)[0]
    back = global_shape_from_local(local, mesh, placements)
    assert local_shard_shape_from_global(back, mesh, placements)[0] == local


@given(cases(DIMS))
def test_all_local_shapes_tell_the_global_shape(case):
    shape, mesh, placements = case
    locals_ = local_shard_shape_from_global(shape, mesh, placements)
    if shape:
        assert global_shape_from_local(locals_, mesh, placements) == Shape(shape)


@given(cases(st.sampled_from(["batch", "seq"])))
def test_one_local_shape_of_names_tells_the_global_shape(case):
    shape, mesh, placements = case
    for local in local_shard_shape_from_global(shape, mesh, placements):
        assert global_shape_from_local(local, mesh, placements) == Shape(shape)


@given(st.data())
def test_one_local_shape_of_an_even_split_tells_the_global_shape(data):
    shape, mesh, placements = data.draw(cases())
    whole = [size * mesh.num_devices for size in shape]
    local = local_shard_shape_from_global(whole, mesh, placements)
    assert len(set(local)) == 1
    assert global_shape_from_local(local[0], mesh, placements) == tuple(whole)
    assert shard_shape(whole, placements, mesh.mesh_shape) == local[0]


@given(cases())
def test_the_representative_shard_is_rounded_down(case):
    shape, mesh, placements = case
    expected = list(shape)
    for size, placement in zip(mesh.mesh_shape, placements, strict=True):
        if isinstance(placement, Sharded):
            expected[placement.axis] //= size
    assert shard_shape(shape, placements, mesh.mesh_shape) == tuple(expected)


@given(cases(st.sampled_from(["batch", "batch * 2 + 1"])), st.integers(0, 50))
def test_the_representative_shard_of_names_is_rounded_down(case, batch):
    shape, mesh, placements = case
    sizes = Shape(shape).subs({"batch": batch})
    local = shard_shape(shape, placements, mesh.mesh_shape)
    assert local.subs({"batch": batch}) == shard_shape(sizes, placements, mesh.mesh_shape)


MESH = make_mesh({"dp": 2, "tp": 4})


def test_names_get_a_name_per_mesh_axis():
    assert local_shard_shape_from_global(["batch", "seq"], MESH, [Sharded(0), Sharded(1)])[3] == ("batch_dp", "seq_tp")
    assert local_shard_shape_from_global(["batch", 8], MESH, [Sharded(0), Sharded(0)])[3] == ("batch_dp_tp", 8)
    assert local_shard_shape_from_global(["batch"], MESH, [Replicated(), Partial()])[3] == ("batch",)
    assert local_shard_shape_from_global(["batch"], make_mesh({"dp": 1, "tp": 2}), [Sharded(0), Sharded(0)])[1] == (
        "batch_tp",
    )
    assert local_shard_shape_from_global(["batch"], make_mesh({"my axis": 2}), [Sharded(0)])[1] == ("batch_my_axis",)


def test_names_lead_back():
    assert global_shape_from_local(["batch_dp_tp"], MESH, [Sharded(0), Sharded(0)]) == ("batch",)
    assert global_shape_from_local(["batch_dp"], MESH, [Sharded(0), Replicated()]) == ("batch",)
    # A local name that no mesh axis made is the size of each shard.
    assert global_shape_from_local(["batch"], MESH, [Sharded(0), Replicated()]) == Shape(["batch * 2"])
    assert global_shape_from_local(["_dp"], MESH, [Sharded(0), Replicated()]) == Shape(["_dp * 2"])


def test_arithmetic_on_names_is_cut_exactly():
    pieces = local_shard_shape_from_global(["batch * 2 + 1"], make_mesh({"tp": 4}), [Sharded(0)])
    for batch in range(9):
        assert [int(piece.subs({"batch": batch})[0]) for piece in pieces] == [
            (batch * 2 + 1) // 4 + (i < (batch * 2 + 1) % 4) for i in range(4)
        ]


def test_one_uneven_shape_gives_the_largest_global_size():
    assert global_shape_from_local([3], make_mesh({"tp": 4}), [Sharded(0)]) == (12,)
    assert global_shape_from_local([[3], [3], [2], [2]], make_mesh({"tp": 4}), [Sharded(0)]) == (10,)


def test_scalars_have_scalar_shards():
    assert local_shard_shape_from_global([], MESH, [Replicated(), Partial()]) == ((),) * 8
    assert global_shape_from_local([], MESH, [Replicated(), Partial()]) == ()
    assert global_shape_from_local([()] * 8, MESH, [Replicated(), Partial()]) == ()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: shard_shape([8], [Sharded(0)], [2, 4]),
            ValueError,
            "shard_shape needs one placement per mesh axis: mesh_shape (2, 4) has 2, but got 1 in (Sharded(0),)",
        ),
        (
            lambda: shard_shape([8], [Sharded(1)], [2]),
            ValueError,
            "Sharded(1) on mesh axis 0 is out of range for a tensor of rank 1: use a dim from -1 to 0",
        ),
        (
            lambda: shard_shape([], [Sharded(0)], [2]),
            ValueError,
            "Sharded(0) on mesh axis 0 is out of range for a tensor of rank 0: a scalar cannot be split, use Replicated()",
        ),
        (
            lambda: shard_shape([8], [0], [2]),
            TypeError,
            "a placement is Replicated(), Sharded(axis) or Partial(reduce_op), but got 0",
        ),
        (
            lambda: shard_shape([8], [Sharded(0)], [0]),
            ValueError,
            "mesh axis 0 has size 0: every axis needs size 1 or more",
        ),
        (
            lambda: shard_shape([8], [Sharded(0)], ["2"]),
            TypeError,
            "the size of mesh axis 0 is a whole number, but got '2'",
        ),
        (lambda: shard_shape([-8], [Sharded(0)], [2]), ValueError, "the size of a dim is 0 or more, but got -8"),
        (
            lambda: shard_shape([1.5], [Sharded(0)], [2]),
            TypeError,
            "a dim is a whole number, a name or a Dim, but got 1.5",
        ),
        (
            lambda: shard_shape("batch", [Sharded(0)], [2]),
            TypeError,
            "a shape is a sequence of dims, but got 'batch': use Shape(['batch'])",
        ),
        (
            lambda: local_shard_shape_from_global([8], MESH, [Sharded(0)]),
            ValueError,
            "a PlacementMapping needs one placement per mesh axis: the mesh dp=2 × tp=4 has 2, but got 1",
        ),
        (
            lambda: local_shard_shape_from_global([8], MESH, [Sharded(0), Sharded(-2)]),
            ValueError,
            "Sharded(-2) on mesh axis 'tp' is out of range for a tensor of rank 1",
        ),
        (
            lambda: global_shape_from_local("batch", MESH, [Sharded(0), Replicated()]),
            TypeError,
            "but got 'batch': use ['batch']",
        ),
        (
            lambda: global_shape_from_local([[4], [4]], MESH, [Sharded(0), Replicated()]),
            ValueError,
            "the mesh dp=2 × tp=4 has 8 devices, but got 2 local shapes: give one shape per device, or the first device's alone",
        ),
        (
            lambda: global_shape_from_local([[4], [4, 1]], make_mesh({"dp": 2}), [Sharded(0)]),
            ValueError,
            "device 1 holds [4, 1], but device 0 [4]: shards have the same rank",
        ),
        (
            lambda: global_shape_from_local([[2], [3]], make_mesh({"dp": 2}), [Sharded(0)]),
            ValueError,
            "device 0 holds [2], but a balanced split of [5] over the mesh dp=2 gives it [3]: the first shards get one more, axis by axis",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)
