"""The two vocabularies: what one says the other says too, or it is told what would be lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.strategies import mapped_shapes, meshes, named_mappings, placement_mappings, ranks
from weft.sharding import (
    ConversionError,
    DeviceMapping,
    DimSpec,
    NamedMapping,
    P,
    Partial,
    Placement,
    PlacementMapping,
    ReduceOp,
    Replicated,
    Sharded,
    make_mesh,
)
from weft.sharding.layout import Layout
from weft.sharding.mapping import ShardingSpec, named_mapping

MESH = make_mesh({"dp": 2, "tp": 4})


def from_the_front(placements, rank):
    return tuple(Sharded(p.axis % rank) if isinstance(p, Sharded) else p for p in placements)


@given(st.data(), ranks)
def test_placements_to_names_and_back(data, rank):
    mapping = data.draw(placement_mappings(rank))
    named = mapping.to_named_sharding(rank)
    assert named.to_placements() == from_the_front(mapping.placements, rank)
    assert named.layout(rank) is mapping.layout(rank)


@given(st.data(), ranks)
def test_names_to_placements_and_back_or_the_order_would_be_lost(data, rank):
    mapping = data.draw(named_mappings(rank))
    order = mapping.mesh.axis_names.index
    if all(list(axes) == sorted(axes, key=order) for axes in mapping.layout(rank).splits):
        back = PlacementMapping(mapping.mesh, mapping.to_placements())
        assert back.to_named_sharding(rank) == mapping
    else:
        with pytest.raises(ConversionError, match="placements mean mesh-axis order"):
            mapping.to_placements()


def _says_all(mapping):
    """Whether placements say all of a mapping, and none of them is pending."""
    try:
        return not any(isinstance(p, Partial) for p in mapping.to_placements())
    except ConversionError:
        return False


@given(mapped_shapes())
def test_one_layout_under_both_names(case):
    mapping, shape = case
    layout = mapping.layout(len(shape))
    assert named_mapping(layout).layout(len(shape)) is layout
    assert mapping.is_fully_replicated == layout.is_replicated
    assert mapping.is_settled == (not layout.pending)
    assert mapping.is_fully_resolved == _says_all(mapping)
    assert {*layout.split_axes, *layout.pending_axes, *layout.replicated_axes} == set(mapping.mesh.axis_names)
    assert len(layout.split_axes) + len(layout.pending_axes) + len(layout.replicated_axes) == mapping.mesh.ndim


@given(mapped_shapes(), meshes())
def test_another_mesh_keeps_what_it_can_say(case, mesh):
    mapping, shape = case
    layout = mapping.layout(len(shape))
    lost = [axis for axis in layout.pending_axes if axis not in mesh.axis_names]
    if lost:
        with pytest.raises(
            ConversionError, match=f"over mesh axis '{lost[0]}' would be lost on the mesh .*: reduce it first"
        ):
            mapping.to_mesh(mesh)
        return
    moved = mapping.to_mesh(mesh)
    assert type(moved) is type(mapping)
    assert moved.mesh == mesh
    assert dict(moved.layout(len(shape)).pending) == dict(layout.pending)
    for before, after in zip(layout.splits, moved.layout(len(shape)).splits, strict=True):
        kept = [axis for axis in before if axis in mesh.axis_names]
        if isinstance(mapping, NamedMapping):
            assert list(after) == kept
        else:  # placements mean the order of the mesh they are on
            assert set(after) == set(kept)


def test_names_in_both_vocabularies():
    mapping = NamedMapping(MESH, P(None, "tp"), unreduced={"dp": ReduceOp.MAX})
    assert mapping.to_placements() == (Partial(ReduceOp.MAX), Sharded(1))
    assert NamedMapping(MESH, P(None, "tp"), unreduced=["dp"]).to_placements() == (Partial(), Sharded(1))
    assert PlacementMapping(MESH, [Sharded(0), Sharded(0)]).to_named_sharding(2).spec == P(("dp", "tp"), None)
    assert PlacementMapping(MESH, [Sharded(-1), Replicated()]).to_named_sharding(3).spec == P(None, None, "dp")
    assert NamedMapping(MESH, P("dp")).to_named_sharding(3).spec == P("dp", None, None)
    assert isinstance(mapping, DeviceMapping)
    assert not mapping.is_fully_resolved
    assert NamedMapping(MESH, P()).is_fully_replicated
    assert NamedMapping(MESH, P("dp")).is_fully_resolved
    assert not NamedMapping(MESH, [DimSpec(["dp"], is_open=True)]).is_fully_resolved


@pytest.mark.parametrize(
    "mapping",
    [
        NamedMapping(MESH, P("dp"), priorities=[1]),
        NamedMapping(MESH, P("dp"), memory_kind="pinned_host"),
        NamedMapping(MESH, P(("tp", "dp"))),
        NamedMapping(MESH, [DimSpec(["dp"], is_open=True)]),
        NamedMapping(MESH, P("dp"), ["tp"]),
        NamedMapping(MESH, P(("dp", "tp"))),
        PlacementMapping(MESH, [Sharded(0), Partial()]),
        PlacementMapping(MESH, [Sharded(0), Sharded(0)]),
    ],
    ids=str,
)
def test_resolved_is_what_placements_can_say(mapping):
    assert mapping.is_fully_resolved == _says_all(mapping)


def test_an_axis_of_size_one_takes_nothing_away():
    mesh = make_mesh({"one": 1, "dp": 2})
    whole = [
        NamedMapping(mesh, P("one")),
        NamedMapping(mesh, P(), ["one"]),
        PlacementMapping(mesh, [Sharded(0), Replicated()]),
        PlacementMapping(mesh, [Partial(), Replicated()]),
    ]
    assert all(mapping.is_fully_replicated and mapping.layout(1).is_replicated for mapping in whole)
    split = [NamedMapping(mesh, P(("one", "dp"))), PlacementMapping(mesh, [Sharded(0), Partial()])]
    assert not any(mapping.is_fully_replicated or mapping.layout(1).is_replicated for mapping in split)


def test_a_dim_that_is_not_there_is_a_conversion_error():
    for call in (
        lambda: PlacementMapping(MESH, [Sharded(2), Replicated()]).layout(2),
        lambda: PlacementMapping(MESH, [Sharded(-3), Replicated()]).to_named_sharding(2),
        lambda: PlacementMapping(MESH, [Sharded(0), Replicated()]).to_named_sharding(0),
    ):
        with pytest.raises(ConversionError, match="is out of range for a tensor of rank"):
            call()


def test_placements_are_no_partition_spec():
    for entry in (Sharded(0), Replicated(), Partial()):
        with pytest.raises(
            TypeError, match=r"P names mesh axes, .* dim 1 has the placement .*: use P\('dp', None\), or"
        ):
            P(None, entry)


def test_dim_specs_are_another_way_to_write_names():
    mapping = NamedMapping(MESH, [DimSpec(["dp"], priority=1), DimSpec(["tp"], is_open=True)])
    assert mapping.spec == P("dp", "tp")
    assert mapping.priorities == (1, 0)
    assert mapping.open_dims == {1}
    assert mapping.to_named_sharding(3).priorities == (1, 0, 0)
    assert mapping.to_named_sharding(3).open_dims == {1}
    assert NamedMapping(MESH, [DimSpec("dp"), DimSpec(None)]) == NamedMapping(MESH, P("dp", None))
    assert P(DimSpec(["dp", "tp"]), DimSpec([])) == P(("dp", "tp"), None)
    assert P(("dp",), ()) == P("dp", None)
    assert ShardingSpec(MESH, [DimSpec(["dp"])], {"tp"}) == NamedMapping(MESH, P("dp"))


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            NamedMapping(MESH, P(("tp", "dp"))),
            "placements mean mesh-axis order ('dp', 'tp'), so the order ('tp', 'dp') of dim 0 would be lost: "
            "keep the NamedMapping, or reshard to mesh order",
        ),
        (NamedMapping(MESH, P("dp"), priorities=[2]), "placements cannot say priorities (2,) of NamedMapping("),
        (
            NamedMapping(MESH, P("dp"), memory_kind="pinned_host"),
            "placements cannot say memory_kind 'pinned_host' of NamedMapping(",
        ),
        (
            NamedMapping(MESH, [DimSpec(["dp"], is_open=True)]),
            "placements cannot say the open dims [0] of NamedMapping(",
        ),
    ],
)
def test_what_placements_cannot_say_is_told(mapping, text):
    with pytest.raises(ConversionError) as raised:
        mapping.to_placements()
    assert text in str(raised.value)


def test_layouts_are_one_object_and_change_by_parts():
    layout = Layout(MESH, [["dp"], []], {"tp": ReduceOp.SUM})
    assert layout is Layout(MESH, (("dp",), ()), [("tp", ReduceOp.SUM)])
    assert layout.resolved is Layout(MESH, [["dp"], []])
    assert layout.resolved.resolved is layout.resolved
    assert layout.with_pending({}) is layout.resolved
    assert layout.with_split(0, ()).splits == ((), ())
    assert layout.with_dim(1, ()).splits == (("dp",), (), ())
    assert layout.without_dim(0).splits == ((),)
    assert layout.split_count(0) == 2
    assert layout.dim_of == {"dp": 0}
    assert str(layout) == "(dp, –) sum@tp"
    assert Layout.replicated(MESH, 2).is_replicated
    assert not layout.is_replicated


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: PlacementMapping(MESH, [Sharded(0)]),
            ValueError,
            "a PlacementMapping needs one placement per mesh axis: the mesh dp=2 × tp=4 has 2, but got 1 in (Sharded(0),); "
            "use Replicated() for an axis that splits nothing",
        ),
        (lambda: PlacementMapping(MESH, [Sharded(0)] * 3), ValueError, "the mesh dp=2 × tp=4 has 2, but got 3"),
        (
            lambda: PlacementMapping(MESH, ["dp", None]),
            TypeError,
            "a placement is Replicated(), Sharded(axis) or Partial(reduce_op), but got 'dp': use for instance Sharded(0)",
        ),
        (
            lambda: PlacementMapping(MESH, Sharded(0)),
            TypeError,
            "placements has one entry per mesh axis, but got Sharded(0): use (Sharded(0),)",
        ),
        (
            lambda: PlacementMapping((2, 4), []),
            TypeError,
            "a mapping needs a DeviceMesh, but got (2, 4): use make_mesh({'dp': 2})",
        ),
        (
            lambda: PlacementMapping(MESH, [Sharded(2), Replicated()]).layout(2),
            ValueError,
            "Sharded(2) on mesh axis 'dp' is out of range for a tensor of rank 2: use a dim from -2 to 1",
        ),
        (
            lambda: PlacementMapping(MESH, [Sharded(-3), Replicated()]).to_named_sharding(2),
            ValueError,
            "Sharded(-3) on mesh axis 'dp' is out of range for a tensor of rank 2",
        ),
        (
            lambda: PlacementMapping(MESH, [Sharded(0), Replicated()]).layout(0),
            ValueError,
            "Sharded(0) on mesh axis 'dp' is out of range for a tensor of rank 0: a scalar cannot be split, use Replicated()",
        ),
        (
            lambda: PlacementMapping(MESH, [Replicated()] * 2).layout(-1),
            ValueError,
            "a tensor's rank is a whole number, 0 or more, but got -1: use tensor.ndim",
        ),
        (
            lambda: NamedMapping(MESH, P("dp", "dp")),
            ValueError,
            "mesh axis 'dp' is used twice, to split dim 0 and to split dim 1: "
            "an axis can split one dim once or hold one pending reduction",
        ),
        (
            lambda: NamedMapping(MESH, P(("dp", "dp"))),
            ValueError,
            "mesh axis 'dp' is used twice, to split dim 0 and to split dim 0",
        ),
        (
            lambda: NamedMapping(MESH, P("dp"), unreduced=["dp"]),
            ValueError,
            "mesh axis 'dp' is used twice, to split dim 0 and for a pending sum",
        ),
        (
            lambda: NamedMapping(MESH, P(), ["dp", "dp"]),
            ValueError,
            "a mesh axis is used twice in unreduced ('dp', 'dp'): name each axis once",
        ),
        (lambda: NamedMapping(MESH, P("pp")), ValueError, "unknown mesh axis 'pp': this mesh has 'dp', 'tp'"),
        (
            lambda: NamedMapping(MESH, P(), unreduced=["pp"]),
            ValueError,
            "unknown mesh axis 'pp': this mesh has 'dp', 'tp'",
        ),
        (
            lambda: NamedMapping(MESH, P(), unreduced=[0]),
            TypeError,
            "unreduced takes mesh axis names, but got 0: use one of 'dp', 'tp'",
        ),
        (
            lambda: NamedMapping(MESH, P(), unreduced="dp"),
            TypeError,
            "unreduced takes several names, but got the string 'dp': use ('dp',)",
        ),
        (
            lambda: NamedMapping(MESH, P(), unreduced={"dp": "median"}),
            ValueError,
            "unknown reduction 'median': use one of 'sum', 'mean' (or 'avg'), 'max', 'min', 'prod'",
        ),
        (
            lambda: NamedMapping(MESH, "dp"),
            TypeError,
            "a spec has one entry per tensor dim, but got the string 'dp': use P('dp')",
        ),
        (lambda: NamedMapping(None, P("dp")), TypeError, "a mapping needs a DeviceMesh, but got None"),
        (
            lambda: NamedMapping(MESH, P("dp", None), priorities=[1]),
            ValueError,
            "priorities (1,) has 1 entries, but P('dp', None) has 2: give one per entry or none",
        ),
        (
            lambda: NamedMapping(MESH, P("dp"), priorities=[-1]),
            ValueError,
            "a priority is a whole number, 0 or more, but got -1 in (-1,): use 0 for dims that can wait",
        ),
        (
            lambda: NamedMapping(MESH, [DimSpec(["dp"], priority=1)], priorities=[1]),
            ValueError,
            "priorities are given twice, in [DimSpec(['dp'], priority=1)] and as (1,): give them once",
        ),
        (
            lambda: NamedMapping(MESH, P("dp"), memory_kind="disk"),
            ValueError,
            "unknown memory_kind 'disk': use None or one of 'device', 'pinned_host', 'unpinned_host'",
        ),
        (
            lambda: NamedMapping(MESH, P("dp", "tp")).layout(1),
            ValueError,
            "P('dp', 'tp') has 2 entries, but the tensor has rank 1: drop entries at the end",
        ),
        (
            lambda: P(3),
            TypeError,
            "a partition spec entry is None, a mesh axis name or a tuple of names, but dim 0 has 3: use for instance P('dp', None)",
        ),
        (
            lambda: P("dp", ("tp", 3)),
            TypeError,
            "a partition spec entry names mesh axes, but dim 1 has 3 in ('tp', 3): use for instance 'dp'",
        ),
        (
            lambda: P(DimSpec(["dp"], is_open=True)),
            ValueError,
            "P cannot say the openness or priority of DimSpec(['dp'], is_open=True) (dim 0): "
            "use NamedMapping(mesh, [DimSpec(['dp'], is_open=True)])",
        ),
        (lambda: DimSpec([3]), TypeError, "DimSpec takes mesh axis names, but got 3 in (3,): use DimSpec(['dp'])"),
        (
            lambda: DimSpec(["dp", "dp"]),
            ValueError,
            "a mesh axis is used twice in DimSpec(['dp', 'dp']): name each axis once",
        ),
        (
            lambda: DimSpec([], is_open=1),
            TypeError,
            "is_open of a DimSpec is True or False, but got 1: use is_open=True",
        ),
        (
            lambda: DimSpec([], priority=1.5),
            TypeError,
            "the priority of a DimSpec is a whole number, but got 1.5: use for instance 1",
        ),
        (
            lambda: DimSpec([], priority=-1),
            ValueError,
            "the priority of a DimSpec is 0 or more, but got -1: use 0, the first",
        ),
        (
            lambda: Sharded("dp"),
            TypeError,
            "Sharded takes the tensor dim to split, a whole number, but got 'dp': use Sharded(0)",
        ),
        (lambda: Sharded(True), TypeError, "but got True: use Sharded(0)"),
        (
            lambda: Partial("median"),
            ValueError,
            "unknown reduction 'median': use one of 'sum', 'mean' (or 'avg'), 'max', 'min', 'prod'",
        ),
        (
            Placement,
            TypeError,
            "Placement is abstract: use Replicated(), Sharded(axis) or Partial(reduce_op)",
        ),
        (DeviceMapping, TypeError, "abstract"),
        (
            lambda: ShardingSpec(MESH, [DimSpec(["dp"])], {"dp"}),
            ValueError,
            "mesh axis 'dp' is in replicated_axes, but splits dim 0 in P('dp'): use it for one of the two",
        ),
        (
            lambda: ShardingSpec(MESH, [], "dp"),
            TypeError,
            "replicated_axes is a set of names, but got the string 'dp': use {'dp'}",
        ),
        (lambda: ShardingSpec(MESH, [], {"pp"}), ValueError, "unknown mesh axis 'pp': this mesh has 'dp', 'tp'"),
        (
            lambda: Layout(MESH, [[3]]),
            TypeError,
            "a mesh axis name is a string, but dim 0 is split by 3: use one of 'dp', 'tp'",
        ),
        (
            lambda: Layout(MESH, [], {"dp": "sum"}),
            TypeError,
            "the pending reduction of mesh axis 'dp' is a ReduceOp, but got 'sum': use ReduceOp.SUM",
        ),
        (
            lambda: PlacementMapping(MESH, [Partial("max"), Replicated()]).to_mesh(make_mesh({"tp": 4})),
            ConversionError,
            "the pending max over mesh axis 'dp' would be lost on the mesh tp=4: reduce it first (all_reduce)",
        ),
    ],
)
def test_a_bad_mapping_says_what_is_wrong(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert text in str(raised.value)


def test_the_kinds_of_reduction():
    assert ReduceOp.of("mean") is ReduceOp.MEAN is ReduceOp.AVG is ReduceOp("avg") is ReduceOp("mean")
    assert [ReduceOp.of(kind) for kind in ("sum", "MAX", "min", "prod")] == [
        ReduceOp.SUM,
        ReduceOp.MAX,
        ReduceOp.MIN,
        ReduceOp.PROD,
    ]
    assert [str(op) for op in ReduceOp] == ["sum", "mean", "min", "max", "prod"]
    assert Partial("avg") == Partial(ReduceOp.MEAN)
