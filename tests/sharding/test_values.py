"""What every value of the vocabulary is: frozen, hashable, equal to its repr, and itself after a journey."""

import copy
import pickle
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.devices
import weft.sharding
from tests.sharding.strategies import mapped_shapes, meshes
from weft.devices import CPU, Accelerator
from weft.sharding import (
    DimSpec,
    DistributedBufferType,
    DistributedTensorType,
    NamedMapping,
    P,
    Partial,
    PlacementMapping,
    ReduceOp,
    Replicated,
    Sharded,
    TensorLayout,
    make_mesh,
)
from weft.sharding.dims import Dim, Shape
from weft.sharding.dtype import DType
from weft.sharding.layout import Layout
from weft.sharding.types import LocalBufferType, LocalTensorType

MESH = make_mesh({"dp": 2, "tp": 4})

# Two unequal values of every kind.
VALUES = [
    (CPU(1), CPU(2)),
    (Accelerator(), Accelerator(1)),
    (MESH, make_mesh({"dp": 4, "tp": 2})),
    (weft.sharding.DeviceMesh([CPU(3), CPU(1)], (2,), ("x",)), weft.sharding.DeviceMesh([CPU(0)] * 2, (2,), ("x",))),
    (ReduceOp.SUM, ReduceOp.MAX),
    (Replicated(), Sharded(0)),
    (Sharded(1), Sharded(-1)),
    (Partial(), Partial("max")),
    (P("dp", None, ("tp", "sp")), P()),
    (DimSpec(["dp"], is_open=True, priority=2), DimSpec([])),
    (Layout(MESH, [["dp"]], {"tp": ReduceOp.MAX}), Layout(MESH, [["dp"]])),
    (PlacementMapping(MESH, [Sharded(0), Partial()]), PlacementMapping(MESH, [Sharded(0), Replicated()])),
    (NamedMapping(MESH, P("dp"), ["tp"], [1], "pinned_host"), NamedMapping(MESH, P("dp"), {"tp": ReduceOp.MIN})),
    (NamedMapping(MESH, [DimSpec(["dp"], is_open=True, priority=1)]), NamedMapping(MESH, P(("tp", "dp")))),
    (DType.float32, DType.bfloat16),
    (Dim(8), Dim(0)),
    (Dim("batch"), Dim("seq")),
    (Dim("batch // 4 + 1"), Dim("batch * seq - 3")),
    (Shape([2, "batch", "batch // 4"]), Shape([])),
    (LocalTensorType("f32", [2, "b"], CPU(1)), LocalTensorType("f32", [2], CPU(1))),
    (LocalBufferType("u8", [64], CPU(1)), LocalBufferType("u8", [64], CPU(2))),
    (
        DistributedTensorType("f32", [8, "b"], MESH, [Sharded(0), Partial()]),
        DistributedTensorType("f32", [8], MESH, [Replicated()] * 2),
    ),
    (
        DistributedBufferType("f32", [8, "b"], MESH, [Sharded(0), Partial()]),
        DistributedBufferType("f32", [8], MESH, [Replicated()] * 2),
    ),
    (TensorLayout("f32", [8, "b"], NamedMapping(MESH, P("dp"))), TensorLayout("f32", [8], NamedMapping(MESH, P("dp")))),
]
EACH = [value for pair in VALUES for value in pair]
SCOPE = {
    **vars(weft.devices),
    **{name: getattr(weft.sharding, name) for name in (*weft.sharding.__all__, *weft.sharding._HOME)},
    "Layout": Layout,
    "LocalTensorType": LocalTensorType,
    "LocalBufferType": LocalBufferType,
}


def name(value):
    return type(value).__name__


@pytest.mark.parametrize("value", EACH, ids=name)
def test_the_repr_says_the_value(value):
    assert eval(repr(value), dict(SCOPE)) == value


@pytest.mark.parametrize("value", EACH, ids=name)
def test_a_value_survives_copies_and_pickles(value):
    for same in (copy.copy(value), copy.deepcopy(value), *(pickle.loads(pickle.dumps(value, n)) for n in range(2, 6))):
        assert same == value
        assert type(same) is type(value)
        assert hash(same) == hash(value)
        assert repr(same) == repr(value)


@pytest.mark.parametrize("value", EACH, ids=name)
def test_a_value_cannot_change(value):
    fields = {field for kind in type(value).__mro__ for field in getattr(kind, "__slots__", ()) if field[:2] != "__"}
    for field in ("name", "value") if isinstance(value, Enum) else {*fields, "anything"}:
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, field, 1)
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, field)


@pytest.mark.parametrize(("one", "other"), VALUES, ids=name)
def test_values_of_one_kind_are_told_apart(one, other):
    assert one != other
    assert one == copy.deepcopy(one)
    assert len({one, other}) == 2
    assert repr(one) != repr(other)
    assert one != object()


@given(meshes())
def test_the_repr_of_any_mesh_says_the_mesh(mesh):
    again = eval(repr(mesh), dict(SCOPE))
    assert again == mesh
    assert hash(again) == hash(mesh)


@given(mapped_shapes(), st.sampled_from(["f32", "i64"]))
def test_the_repr_of_any_mapping_says_the_mapping(case, dtype):
    mapping, shape = case
    for value in (mapping, mapping.layout(len(shape)), TensorLayout(dtype, shape, mapping)):
        again = eval(repr(value), dict(SCOPE))
        assert again == value
        assert hash(again) == hash(value)


def test_devices_are_ordered():
    assert sorted([Accelerator(0), CPU(2), CPU(1)]) == [CPU(1), CPU(2), Accelerator(0)]
    assert CPU(1) < CPU(2) <= CPU(2) < Accelerator(0)
    assert Accelerator(1) > Accelerator(0) >= CPU(9)
    assert (CPU(3).label, CPU(3).id, CPU(3).is_host, str(CPU(3))) == ("cpu", 3, True, "cpu:3")
    assert (Accelerator().label, Accelerator().id, Accelerator().is_host) == ("gpu", 0, False)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: CPU(-1), ValueError, "a device id is 0 or more, but got -1: use CPU(0)"),
        (lambda: CPU("0"), TypeError, "a device id is a whole number, but got '0': use CPU(0)"),
        (lambda: Accelerator(1.5), TypeError, "a device id is a whole number, but got 1.5: use Accelerator(0)"),
        (weft.devices.Device, TypeError, "Device is abstract: use CPU(id) or Accelerator(id)"),
    ],
)
def test_a_bad_device_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)


def test_the_door_has_the_names_of_the_vocabulary():
    assert weft.sharding.__all__ == [
        "ConversionError",
        "DeviceMapping",
        "DeviceMesh",
        "DimSpec",
        "DistributedBufferType",
        "DistributedTensorType",
        "DistributedType",
        "NamedMapping",
        "P",
        "Partial",
        "Placement",
        "PlacementMapping",
        "ReduceOp",
        "Replicated",
        "Sharded",
        "SpecEntry",
        "TensorLayout",
        "global_shape_from_local",
        "local_shard_shape_from_global",
        "make_mesh",
        "mesh_context",
        "shard_shape",
    ]
    for public in weft.sharding.__all__:
        assert hasattr(weft.sharding, public)


def test_a_reduction_is_its_name():
    for op in ReduceOp:
        assert isinstance(op, str)
        assert op == op.value
        assert {op: 1}[op.value] == 1
        assert ReduceOp(str(op)) is op
        assert f"{op}" == str(op)


def test_replicated_is_one_value():
    assert Replicated() is Replicated()
    assert pickle.loads(pickle.dumps(Replicated())) is Replicated()
    assert copy.deepcopy(Replicated()) is Replicated()


def test_a_shape_equals_lists_and_tuples_of_its_sizes():
    shape = Shape([2, "batch"])
    for same in ([2, "batch"], (2, "batch")):
        assert shape == same
        assert same == shape
        assert (shape != same) is False
    assert shape != [2]
    assert hash(shape) == hash(Shape((2, "batch")))
