"""Moving keeps the value; what is logged is what had to move; gradients come back the same way."""

import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import P, ReduceOp
from weft.planning import plan_layouts
from weft.sharding import DeviceMesh, make_mesh
from weft.sharding.geometry import box, box_shape
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

from .strategies import layouts, meshes, shapes


def laid(x: torch.Tensor, layout: Layout) -> weft.Tensor:
    return weft.shard(x, layout.mesh, named_mapping(layout))


def numbers(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def assert_lies(y: weft.Tensor, x: torch.Tensor, layout: Layout) -> None:
    """The value is x, and every device holds its box of it (for a pending one: the boxes reduce to it)."""
    assert y.shape == x.shape
    assert y._layout is layout
    assert torch.equal(y.full_tensor().cpu(), x.cpu())
    if not layout.pending:
        for slot, shard in enumerate(y.local_shards):
            where = box(layout, tuple(x.shape), slot)
            assert torch.equal(shard.cpu(), x.cpu()[tuple(slice(*interval) for interval in where)])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_moving_keeps_the_value_and_back_is_identity(memory, data) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    first = data.draw(layouts(mesh, len(shape)))
    second = data.draw(layouts(mesh, len(shape)))
    x = numbers(shape)
    there = laid(laid(x, first), second)
    assert_lies(there, x, second)
    assert_lies(laid(there, first), x, first)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_pending_reductions_resolve_to_the_value(memory, data) -> None:
    mesh, shape = data.draw(meshes(2, 3)), data.draw(shapes)
    first = data.draw(layouts(mesh, len(shape), pending=True))
    second = data.draw(layouts(mesh, len(shape), pending=True))
    x = numbers(shape)
    start = laid(x, first)
    assert_lies(start, x, first)
    assert_lies(laid(start, second), x, second)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_logged_bytes_are_the_lower_bound(memory, data) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    first, second = data.draw(layouts(mesh, len(shape))), data.draw(layouts(mesh, len(shape)))
    x = laid(numbers(shape), first)
    with weft.comm_log() as log:
        laid(x, second)
    bound = [_missing(first, second, shape, slot) * 4 for slot in range(mesh.num_devices)]
    assert log.total_bytes == sum(bound)
    assert max((record.bytes_received for record in log), default=0) <= max(bound)


def _missing(source: Layout, target: Layout, shape: tuple[int, ...], slot: int) -> int:
    """Elements of the slot's target box that it does not hold yet."""
    wanted, held = box(target, shape, slot), box(source, shape, slot)
    common = math.prod(max(0, min(b, d) - max(a, c)) for (a, b), (c, d) in zip(wanted, held, strict=True))
    return math.prod(box_shape(wanted)) - common


def every_layout(mesh: DeviceMesh, rank: int) -> list[Layout]:
    """All layouts of a tensor, with all axis orders and pending sums."""
    result = []
    for places in itertools.product((-2, *range(-1, rank)), repeat=mesh.ndim):
        for order in itertools.permutations(range(mesh.ndim)):
            splits: list[list[str]] = [[] for _ in range(rank)]
            for i in order:
                if places[i] >= 0:
                    splits[places[i]].append(mesh.axis_names[i])
            pending = {axis: ReduceOp.SUM for axis, place in zip(mesh.axis_names, places, strict=True) if place == -2}
            result.append(Layout(mesh, splits, pending))
    return list(dict.fromkeys(result))


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)])
def test_all_pairs_of_layouts(memory, sizes) -> None:
    mesh = make_mesh(dict(zip("ab", sizes, strict=True)))
    x = numbers((5, 4))
    every = every_layout(mesh, 2)
    starts = {layout: laid(x, layout) for layout in every}
    for first, second in itertools.product(every, every):
        moved = laid(starts[first], second)
        assert torch.equal(moved.full_tensor().cpu(), x.cpu()), (first, second)
        assert plan_layouts(first, second, (5, 4), 4).target is second


MESHES = [
    make_mesh({"a": 2, "b": 2}),
    make_mesh({"x": 4}),
    DeviceMesh([weft.CPU(i) for i in (3, 1, 2, 0)], (4,), ("y",)),
    DeviceMesh([weft.CPU(i) for i in (2, 3, 4, 5, 6, 7)], (2, 3), ("p", "q")),
    DeviceMesh([weft.CPU(i) for i in (10, 11)], (2,), ("z",)),
    DeviceMesh.single(weft.CPU(1)),
    DeviceMesh([weft.CPU(0)] * 4, (4,), ("s",)),
]


@pytest.mark.parametrize("source", MESHES, ids=str)
@pytest.mark.parametrize("target", MESHES, ids=str)
def test_between_meshes(memory, source, target) -> None:
    x = numbers((5, 6))
    for first in (P(), P(source.axis_names[0]), P(None, source.axis_names)):
        for second in (P(), P(target.axis_names), P(None, target.axis_names[0])):
            y = weft.shard(weft.shard(x, source, first), target, second)
            assert y.mesh == target
            assert torch.equal(y.full_tensor().cpu(), x.cpu())


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_gradients_come_back_in_the_layout_of_what_they_belong_to(memory, data) -> None:
    mesh, shape = data.draw(meshes(2, 3)), data.draw(shapes)
    first, second = data.draw(layouts(mesh, len(shape), pending=True)), data.draw(layouts(mesh, len(shape)))
    x = laid(numbers(shape).double(), first).requires_grad_()
    weights = numbers(shape).double() + 1
    (laid(x, second) * weights).sum().backward()
    assert x.grad._layout is first.resolved
    assert torch.equal(x.grad.full_tensor(), weights)


def test_a_replica_and_a_split_of_it_copy_nothing(memory) -> None:
    if memory == "separate":
        return
    mesh = make_mesh({"a": 8})
    whole = torch.arange(64.0)
    x = weft.shard(whole, mesh, P())
    y = weft.shard(x, mesh, P("a"))
    assert len({id(shard) for shard in x.local_shards}) == 1
    assert all(torch._C._is_cow_tensor(t) for t in (whole, x._value.pieces[0], y._value.pieces[0]))
    whole.add_(1)
    assert x[0].item() == 0
    x.add_(5)
    assert y[0].item() == 0


def test_plain_tensors_are_never_aliased(memory) -> None:
    mesh = make_mesh({"a": 2})
    plain = torch.zeros(4)
    x = weft.shard(plain, mesh, P("a"))
    plain.add_(1)
    assert x.sum().item() == 0
    x.add_(2)
    assert plain.sum().item() == 4
    full = x.full_tensor()
    full.add_(1)
    assert x.sum().item() == 8


def test_kinds_that_commute_resolve_together_and_others_one_by_one(memory) -> None:
    mesh = make_mesh({"a": 2, "b": 2})
    parts = [torch.tensor([float(10**i)]) for i in range(4)]
    for kinds in ({"a": "sum", "b": "mean"}, {"a": "mean", "b": "sum"}):
        x = weft.from_local(parts, weft.NamedMapping(mesh, P(), unreduced=kinds))
        assert x.item() == 555.5
    mixed = weft.from_local(parts, weft.NamedMapping(mesh, P(), unreduced={"a": "sum", "b": "max"}))
    summed = weft.shard(mixed, mesh, weft.NamedMapping(mesh, P(), unreduced={"b": "max"}))
    assert summed.item() == 1010
    with pytest.raises(weft.PlanError, match="all_reduce"):
        mixed.item()
    crossed = weft.from_local([torch.tensor(v) for v in (3.0, 1.0, 1.0, 3.0)], mixed.mapping)
    assert weft.all_reduce(weft.all_reduce(crossed, "sum", "a"), "max").item() == 4
    assert weft.all_reduce(weft.all_reduce(crossed, "max", "b"), "sum").item() == 6


def test_reshard_takes_all_that_shard_takes() -> None:
    assert inspect.signature(weft.reshard).parameters.keys() == inspect.signature(weft.shard).parameters.keys()
    with pytest.warns(DeprecationWarning, match="use weft.shard"):
        x = weft.reshard({"x": torch.arange(8.0)}, make_mesh({"dp": 2, "tp": 2}), P("dp"), {"tp"}, async_op=True)
    assert torch.equal(x["x"].full_tensor(), torch.arange(8.0))


@pytest.mark.parametrize("inner", [P(), P("tp"), P(None, "tp"), P("dp"), P("tp", "dp"), P(("tp", "dp"))], ids=str)
@pytest.mark.parametrize("batch", ["dp", ("dp", "tp"), ("tp", "dp"), None], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_batch_dim_of_vmap_keeps_the_axes_that_nobody_asks_for(dim: int, batch: object, inner: P) -> None:
    mesh = make_mesh({"dp": 2, "tp": 2})
    x = numbers((4, 6, 8))
    sharded = weft.shard(x, mesh, [None] * dim + [batch])
    moved = torch.vmap(lambda v: weft.shard(2 * v, mesh, inner), in_dims=dim, out_dims=dim)(sharded)
    wanted = weft.NamedMapping(mesh, inner).layout(2)
    assert moved._layout.without_dim(dim) is wanted
    assert moved._layout.splits[dim] == tuple(a for a in sharded._layout.splits[dim] if a in wanted.replicated_axes)
    assert torch.equal(moved.full_tensor(), 2 * x)
    gradient = torch.vmap(torch.func.grad(lambda v: weft.shard(v, mesh, inner).square().sum()), dim, dim)(sharded)
    assert torch.equal(gradient.full_tensor(), 2 * x)


def test_placements_may_stand_behind_a_mesh(memory) -> None:
    """As DTensor's `redistribute` takes them."""
    x = weft.shard(torch.randn(4, 6), weft.make_mesh({"dp": 2, "tp": 2}), P("dp"))
    other = weft.make_mesh({"a": 4})
    for mesh, placements in ((x.mesh, [weft.Replicated(), weft.Sharded(1)]), (other, [weft.Sharded(0)])):
        y = x.redistribute(mesh, placements)
        assert y.mesh == mesh
        assert y.placements == tuple(placements)
        assert torch.equal(y.full_tensor(), x.full_tensor())
