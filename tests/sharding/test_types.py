"""Distributed types: a dtype, a shape, a mesh and placements, and what they make of each device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.strategies import placement_mappings, ranks, shapes
from weft.devices import CPU
from weft.sharding import (
    DistributedBufferType,
    DistributedTensorType,
    DistributedType,
    NamedMapping,
    P,
    Partial,
    PlacementMapping,
    Replicated,
    Sharded,
    TensorLayout,
    local_shard_shape_from_global,
    make_mesh,
)
from weft.sharding.dtype import DType
from weft.sharding.types import LocalBufferType, LocalTensorType

MESH = make_mesh({"dp": 2, "tp": 4})
KINDS = {DistributedTensorType: LocalTensorType, DistributedBufferType: LocalBufferType}


@given(st.sampled_from(list(KINDS)), ranks, st.data())
def test_local_types_are_the_shards_on_their_devices(kind, rank, data):
    mapping, shape = data.draw(placement_mappings(rank)), data.draw(shapes(rank))
    whole = kind("f32", shape, mapping.mesh, mapping.placements)
    assert whole.rank == rank
    assert whole.local_shapes == local_shard_shape_from_global(shape, mapping.mesh, mapping.placements)
    assert whole.local_types == tuple(
        KINDS[kind](DType.float32, local, device)
        for local, device in zip(whole.local_shapes, mapping.mesh.devices, strict=True)
    )
    assert whole.mapping.layout(rank) is mapping.layout(rank)
    assert TensorLayout("f32", shape, mapping).local_shapes == whole.local_shapes


def test_what_a_distributed_type_says():
    kind = DistributedTensorType("bfloat16", ["batch", 6], MESH, [Sharded(0), Partial("max")])
    assert str(kind) == "bf16[batch@dp, 6] on dp=2 × tp=4, pending max@tp"
    assert [str(local) for local in kind.local_types[3:5]] == [
        "bf16[batch_dp, 6] on cpu:3",
        "bf16[batch_dp, 6] on cpu:4",
    ]
    assert kind.local_types[0].rank == 2
    assert kind != DistributedBufferType("bfloat16", ["batch", 6], MESH, [Sharded(0), Partial("max")])
    assert issubclass(DistributedTensorType, DistributedType)
    assert LocalTensorType("f32", [2], CPU()) != LocalBufferType("f32", [2], CPU())


def test_dims_are_counted_from_the_front():
    front = DistributedTensorType("f32", [8, 6], MESH, [Sharded(1), Replicated()])
    assert DistributedTensorType("f32", [8, 6], MESH, [Sharded(-1), Replicated()]) == front


def test_what_a_tensor_layout_says():
    at = TensorLayout("f32", [8, "batch"], NamedMapping(MESH, P(("tp", "dp")), unreduced=()))
    assert (at.rank, at.mesh, at.layout.splits) == (2, MESH, (("tp", "dp"), ()))
    assert str(at.nbytes) == "batch * 32"
    assert str(at.subs({"batch": 3})) == "f32[8@tp·dp, 3] on dp=2 × tp=4"


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: DistributedTensorType("f31", [8], MESH, [Sharded(0)] * 2), TypeError, "unknown dtype 'f31'"),
        (
            lambda: DistributedTensorType("f32", [-8], MESH, [Sharded(0)] * 2),
            ValueError,
            "the size of a dim is 0 or more, but got -8",
        ),
        (
            lambda: DistributedTensorType("f32", [8], MESH, [Sharded(0)]),
            ValueError,
            "needs one placement per mesh axis: the mesh dp=2 × tp=4 has 2, but got 1",
        ),
        (
            lambda: DistributedTensorType("f32", [8], MESH, [Sharded(1)] * 2),
            ValueError,
            "Sharded(1) on mesh axis 'dp' is out of range for a tensor of rank 1: use a dim from -1 to 0",
        ),
        (lambda: DistributedBufferType("f32", [8], None, []), TypeError, "a mapping needs a DeviceMesh, but got None"),
        (lambda: DistributedType("f32", [8], MESH, []), TypeError, "abstract"),
        (
            lambda: TensorLayout("f32", [8], MESH),
            TypeError,
            "use NamedMapping(mesh, spec) or PlacementMapping(mesh, placements)",
        ),
        (
            lambda: TensorLayout("f32", [], NamedMapping(MESH, P("dp"))),
            ValueError,
            "P('dp') has 1 entries, but the tensor has rank 0",
        ),
        (
            lambda: TensorLayout("f32", [8], PlacementMapping(MESH, [Sharded(1), Replicated()])),
            ValueError,
            "out of range",
        ),
        (
            lambda: LocalTensorType("f32", [8], "cpu"),
            TypeError,
            "a device is CPU(id) or Accelerator(id), but got 'cpu': use CPU(0)",
        ),
    ],
)
def test_a_bad_type_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)
