"""Combinations equal their definition on what each device holds."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft import P
from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.geometry import box, box_shape
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

from .strategies import AXES, layouts, meshes

NUMPY = {
    "sum": functools.partial(np.sum, axis=0),
    "mean": functools.partial(np.mean, axis=0),
    "max": functools.partial(np.max, axis=0),
    "min": functools.partial(np.min, axis=0),
    "prod": functools.partial(np.prod, axis=0),
}
KINDS = tuple(NUMPY)


def values(shape: tuple[int, ...]) -> torch.Tensor:
    return (
        torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(math.prod(shape)), device="cpu")
        .double()
        .to(torch.get_default_device())
    )


@st.composite
def even_tensors(draw, pending: bool = False, most_axes: int = 2):
    """A tensor that splits evenly, in some layout."""
    mesh = draw(meshes(most_axes, 3))
    rank = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(list(ReduceOp)))
    layout = draw(layouts(mesh, rank, pending=pending, kinds=(kind,)))
    shape = tuple(draw(st.integers(0, 2)) * layout.split_count(d) for d in range(rank))
    if layout.pending:
        contributions = [
            values(tuple(s // layout.split_count(d) for d, s in enumerate(shape))) + i for i in range(mesh.num_devices)
        ]
        for slot in range(mesh.num_devices):
            coords = mesh.coords(slot)
            first = mesh.slot(
                [0 if a in layout.replicated_axes else c for a, c in zip(mesh.axis_names, coords, strict=True)]
            )
            contributions[slot] = contributions[first]
        return weft.from_local(contributions, named_mapping(layout))
    return weft.shard(values(shape), mesh, named_mapping(layout))


def local_arrays(x: weft.Tensor) -> list[np.ndarray]:
    return [shard.cpu().numpy().copy() for shard in x.local_shards]


@given(even_tensors(), st.sampled_from(KINDS), st.data())
@settings(max_examples=80, deadline=None)
def test_all_reduce_is_the_reduction_of_what_the_group_holds(memory, x, kind, data) -> None:
    axes = data.draw(st.sampled_from([None, *x.mesh.axis_names, x.mesh.axis_names]))
    before = local_arrays(x)
    y = weft.all_reduce(x, kind, axes)
    named = axes if axes is not None else x._layout.split_axes or x.mesh.axis_names
    for group in x.mesh.groups(named):
        expected = NUMPY[kind](np.stack([before[slot] for slot in group]))
        for slot in group:
            np.testing.assert_allclose(local_arrays(y)[slot], expected, rtol=1e-15)


@given(even_tensors(pending=True))
@settings(max_examples=60, deadline=None)
def test_all_reduce_resolves_what_is_pending(memory, x) -> None:
    if not x._layout.pending:
        return
    kind = str(x._layout.pending[0][1])
    before = local_arrays(x)
    y = weft.all_reduce(x, kind)
    assert not y._layout.pending
    for group in x.mesh.groups(x._layout.pending_axes):
        expected = NUMPY[kind](np.stack([before[slot] for slot in group]))
        for slot in group:
            np.testing.assert_allclose(local_arrays(y)[slot], expected, rtol=1e-15)


@given(even_tensors(), st.sampled_from(KINDS), st.data())
@settings(max_examples=80, deadline=None)
def test_reduce_scatter_is_all_reduce_then_a_split(memory, x, kind, data) -> None:
    dim = data.draw(st.integers(0, x.dim() - 1))
    axes = x._layout.splits[dim] or x._layout.replicated_axes
    if not axes:
        return
    axes = tuple(a for a in x.mesh.axis_names if a in axes)
    y = weft.reduce_scatter(x, dim, kind, axes)
    whole = weft.all_reduce(x, kind, axes)
    assert torch.equal(y.full_tensor(), whole.full_tensor())
    assert y._layout.splits[dim][-len(axes) :] == axes
    assert weft.reduce_scatter(x, dim, kind)._layout == y._layout


@given(even_tensors(most_axes=2), st.data())
@settings(max_examples=100, deadline=None)
def test_tiled_all_to_all_is_the_exchange_of_parts(memory, x, data) -> None:
    split, concat = data.draw(st.integers(0, x.dim() - 1)), data.draw(st.integers(0, x.dim() - 1))
    layout = x._layout
    split_dims = [d for d in range(x.dim()) if layout.splits[d]]
    chosen = concat if layout.splits[concat] else split if layout.splits[split] else None
    if chosen is None and len(split_dims) > 1:
        with pytest.raises(ValueError, match="cannot tell its group"):
            weft.all_to_all(x, split, concat)
        return
    axes = (
        layout.splits[chosen]
        if chosen is not None
        else layout.splits[split_dims[0]]
        if split_dims
        else x.mesh.axis_names
    )
    count = math.prod(x.mesh.axis_size(a) for a in axes)
    before = local_arrays(x)
    if before[0].shape[split] % count:
        return
    y = weft.all_to_all(x, split, concat)
    after = local_arrays(y)
    for group in x.mesh.groups(axes):
        for j, slot in enumerate(group):
            parts = [np.split(before[i], count, split)[j] for i in group]
            np.testing.assert_array_equal(after[slot], np.concatenate(parts, concat))


@pytest.mark.parametrize("split_dim", [0, 1])
@pytest.mark.parametrize("split", [0, 1, 2])
@pytest.mark.parametrize("concat", [0, 1, 2])
def test_untiled_all_to_all_stacks_one_slice_from_each(memory, split_dim, split, concat) -> None:
    mesh = make_mesh({"a": 3})
    shape = [2, 4, 5]
    shape[split] = 3
    shape[split_dim] *= 3
    x = weft.shard(values(tuple(shape)), mesh, P(*[None] * split_dim, "a"))
    before = local_arrays(x)
    after = local_arrays(weft.all_to_all(x, split, concat, tiled=False))
    for j in range(3):
        np.testing.assert_array_equal(after[j], np.stack([np.take(before[i], j, split) for i in range(3)], concat))


@st.composite
def untiled_exchanges(draw):
    """A tensor on a mesh of up to three axes, two of its dims, and the axes whose devices exchange."""
    mesh = make_mesh({axis: draw(st.integers(1, 3)) for axis in AXES[: draw(st.integers(1, 3))]})
    rank = draw(st.integers(1, 3))
    layout = draw(layouts(mesh, rank, pending=draw(st.booleans())).filter(lambda layout: layout.split_axes))
    split, concat = draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1))
    split_dims = [d for d in range(rank) if layout.splits[d]]
    group = next((d for d in (concat, split) if layout.splits[d]), split_dims[0])
    local = [draw(st.integers(0, 2)) for _ in range(rank)]
    local[split] = layout.split_count(group)
    shape = tuple(size * layout.split_count(d) for d, size in enumerate(local))
    known = split in split_dims or concat in split_dims or len(split_dims) == 1
    return (
        weft.shard(values(shape), mesh, named_mapping(layout)),
        split,
        concat,
        layout.splits[group] if known else None,
    )


@given(untiled_exchanges())
@settings(max_examples=200, deadline=None)
def test_untiled_all_to_all_is_its_definition_whatever_other_axes_split(memory, exchange) -> None:
    x, split, concat, axes = exchange
    if axes is None:
        with pytest.raises(ValueError, match="cannot tell its group"):
            weft.all_to_all(x, split, concat, tiled=False)
        return
    before = local_arrays(x)
    y = weft.all_to_all(x, split, concat, tiled=False)
    after = local_arrays(y)
    sound(y)
    for group in x.mesh.groups(axes):
        for j, slot in enumerate(group):
            np.testing.assert_array_equal(after[slot], np.stack([np.take(before[i], j, split) for i in group], concat))
    if x.dim() == 2 and split != concat and x._layout.splits[concat]:  # else dims stand elsewhere
        assert_same(weft.all_to_all(y, concat, split, tiled=False), x)


def assert_same(found: weft.Tensor, expected: weft.Tensor) -> None:
    """All devices hold the same."""
    for one, other in zip(local_arrays(found), local_arrays(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def sound(x: weft.Tensor) -> None:
    """Each device holds the box that the layout says."""
    for slot, shard in enumerate(x.local_shards):
        assert tuple(shard.shape) == box_shape(box(x._layout, x.shape, slot))


@given(even_tensors(pending=True, most_axes=3), st.data())
@settings(max_examples=100, deadline=None)
def test_every_device_holds_the_box_that_the_layout_says(memory, x, data) -> None:
    dim = data.draw(st.integers(0, x.dim() - 1))
    kind = x._layout.pending[0][1] if x._layout.pending else "sum"
    sound(weft.all_gather(x, dim))
    sound(weft.all_gather(x))
    sound(weft.all_reduce(x, kind))
    sound(weft.distributed_broadcast(x))
    if len(x._layout.split_axes) == len(x.mesh.axis_names):
        sound(weft.ppermute(x, [(slot, (slot + 1) % x.mesh.num_devices) for slot in range(x.mesh.num_devices)]))
    if x._layout.pending or x._layout.splits[dim] or x._layout.replicated_axes:
        sound(weft.reduce_scatter(x, dim, kind))
    for other in range(x.dim()):
        if x._layout.splits[other] and x.shape[dim] // x._layout.split_count(dim) % x._layout.split_count(other) == 0:
            sound(weft.all_to_all(x, dim, other))


@given(even_tensors(most_axes=1), st.data())
@settings(max_examples=60, deadline=None)
def test_ppermute_hands_shards_on(memory, x, data) -> None:
    if not x._layout.split_axes:
        return
    count = x.mesh.num_devices
    sources = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
    targets = data.draw(st.permutations(range(count)))[: len(sources)]
    pairs = list(zip(sources, targets, strict=True))
    before = local_arrays(x)
    after = local_arrays(weft.ppermute(x, pairs))
    arrived = {dst: src for src, dst in pairs}
    for slot in range(count):
        expected = before[arrived[slot]] if slot in arrived else np.zeros_like(before[slot])
        np.testing.assert_array_equal(after[slot], expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes_are_kept(memory, dtype) -> None:
    x = weft.shard(torch.tensor([1, 0, 1, 1]).to(dtype), make_mesh({"a": 2}), P("a"))
    for kind in ("sum", "prod") if dtype.is_complex else ("sum", "prod", "max", "min"):
        assert weft.all_reduce(x, kind).dtype is dtype


def test_short_floats_are_summed_in_f32(memory) -> None:
    parts = [torch.full((4,), 256.0 if i == 0 else 1.0, dtype=torch.bfloat16) for i in range(9)]
    x = weft.from_local(parts, weft.NamedMapping(make_mesh({"a": 9}), P(), unreduced=["a"]))
    assert weft.all_reduce(x).full_tensor().tolist() == [264.0] * 4


def test_the_same_call_gives_the_same_bits(memory) -> None:
    parts = [torch.randn(1000) for _ in range(4)]
    mapping = weft.NamedMapping(make_mesh({"a": 4}), P(), unreduced=["a"])
    first, *others = (weft.all_reduce(weft.from_local(parts, mapping)) for _ in range(3))
    for other in others:
        assert all(torch.equal(a, b) for a in first.local_shards for b in other.local_shards)


def test_broadcast_gives_every_device_the_whole(memory) -> None:
    mesh = make_mesh({"a": 2, "b": 2})
    x = weft.shard(values((4, 4)), mesh, P("a", "b"))
    y = weft.distributed_broadcast(x)
    assert all(torch.equal(shard, x.full_tensor()) for shard in y.local_shards)
    other = DeviceMesh([weft.CPU(i) for i in range(5)], (5,), ("z",))
    assert weft.distributed_broadcast(x, other).mesh == other
    assert Layout.replicated(mesh, 2) == y._layout


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_has_what_moves(kind: str) -> None:
    """Of replicas each device has the result, in one memory too, and along an axis of replicas nothing is reduced."""
    mesh = make_mesh({"a": 2, "b": 2})
    moved = {}
    for spec in (P(), P("a"), P(("a", "b"))):
        x = weft.shard(values((4, 3)), mesh, spec)
        moved[spec] = []
        for reduced in (weft.all_reduce, functools.partial(weft.reduce_scatter, axis=0)):
            with weft.comm_log() as log:
                reduced(x, reduce_op=kind, reduce_axes=("a", "b"))
            moved[spec].append([(record.kind, record.axes) for record in log if record.bytes_received])
    along_a, along_both = ("a",), ("a", "b")
    assert moved == {
        P(): [[], []],
        P("a"): [[("all_reduce", along_a)], [("reduce_scatter", along_a)]],
        P(("a", "b")): [[("all_reduce", along_both)], [("reduce_scatter", along_both)]],
    }
