"""The laws of boxes: every index is held by exactly the devices that should hold it."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sharding.strategies import mapped_shapes
from weft.sharding import NamedMapping, P, make_mesh
from weft.sharding.geometry import box, box_at, box_shape, holders, interval, piece, within


def slices(where):
    return tuple(slice(start, stop) for start, stop in where)


@given(mapped_shapes())
def test_boxes_tile_the_index_space(case):
    mapping, shape = case
    layout = mapping.layout(len(shape))
    held = np.zeros(shape, int)
    for slot in range(layout.mesh.num_devices):
        held[slices(box(layout, shape, slot))] += 1
    copies = math.prod(layout.mesh.axis_size(axis) for axis in (*layout.replicated_axes, *layout.pending_axes))
    assert (held == copies).all()


@given(mapped_shapes(), st.data())
def test_a_device_holds_what_splitting_axis_by_axis_leaves_it(case, data):
    mapping, shape = case
    layout = mapping.layout(len(shape))
    slot = data.draw(st.integers(0, layout.mesh.num_devices - 1))
    for (start, stop), size, axes in zip(box(layout, shape, slot), shape, layout.splits, strict=True):
        indices = np.arange(size)
        for axis in axes:
            indices = np.array_split(indices, layout.mesh.axis_size(axis))[layout.mesh.device_coord(slot, axis)]
        assert list(range(start, stop)) == indices.tolist()


@given(mapped_shapes(), st.data())
def test_holders_are_the_devices_with_the_same_box(case, data):
    mapping, shape = case
    layout = mapping.layout(len(shape))
    slot = data.draw(st.integers(0, layout.mesh.num_devices - 1))
    mine = box(layout, shape, slot)
    coords = layout.mesh.coords(slot)
    same = [s for s in range(layout.mesh.num_devices) if box(layout, shape, s) == mine]
    together = holders(layout, slot, same_contribution=False)
    assert slot in together
    assert set(together) <= set(same)
    if math.prod(box_shape(mine)):
        assert list(together) == same
    at_my_contribution = [
        s
        for s in together
        if all(layout.mesh.device_coord(s, a) == layout.mesh.device_coord(slot, a) for a in layout.pending_axes)
    ]
    assert list(holders(layout, slot)) == at_my_contribution
    assert box_at(layout, shape, coords) == mine


@given(st.integers(0, 40), st.integers(1, 9))
def test_pieces_are_balanced_and_follow_each_other(size, count):
    pieces = [piece(size, count, i) for i in range(count)]
    assert pieces[0][0] == 0
    assert pieces[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(pieces))
    sizes = [stop - start for start, stop in pieces]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 30), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=3))
def test_nested_cuts_cut_what_is_left(size, cuts):
    cuts = [(count, index % count) for count, index in cuts]
    indices = list(range(size))
    for count, index in cuts:
        start, stop = piece(len(indices), count, index)
        indices = indices[start:stop]
    start, stop = interval(size, cuts)
    assert list(range(start, stop)) == indices


def test_the_order_of_axes_is_part_of_the_layout():
    mesh = make_mesh({"dp": 2, "tp": 2})
    dp_first = NamedMapping(mesh, P(("dp", "tp"))).layout(1)
    tp_first = NamedMapping(mesh, P(("tp", "dp"))).layout(1)
    assert [box(dp_first, (5,), s) for s in range(4)] == [((0, 2),), ((2, 3),), ((3, 4),), ((4, 5),)]
    assert [box(tp_first, (5,), s) for s in range(4)] == [((0, 2),), ((3, 4),), ((2, 3),), ((4, 5),)]


def test_nested_uneven_cuts_are_not_flat_cuts():
    mesh = make_mesh({"dp": 2, "tp": 4})
    layout = NamedMapping(mesh, P(("dp", "tp"))).layout(1)
    assert [stop - start for ((start, stop),) in (box(layout, (10,), s) for s in range(8))] == [2, 1, 1, 1, 2, 1, 1, 1]


def test_a_box_within_another():
    assert within(((6, 8), (0, 3)), ((5, 10), (0, 4))) == ((1, 3), (0, 3))


def test_one_box_of_a_large_mesh_does_not_ask_every_device(monkeypatch):
    mesh = make_mesh({"dp": 64, "tp": 64, "sp": 16})
    layout = NamedMapping(mesh, P("dp", ("sp", "tp"))).layout(2)
    asked = []
    coords = type(mesh).coords
    monkeypatch.setattr(type(mesh), "coords", lambda self, slot: asked.append(slot) or coords(self, slot))
    assert box(layout, (64_000, 64_000), 65_535) == ((63_000, 64_000), (63_938, 64_000))
    assert asked == [65_535]
    asked.clear()
    assert holders(layout, 65_535) == (65_535,)
    assert asked == [65_535]


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_mesh_is_told(slot):
    layout = NamedMapping(make_mesh({"dp": 4}), P("dp")).layout(1)
    with pytest.raises(IndexError, match=f"device index {slot} is outside the mesh: it has devices 0 to 3"):
        box(layout, (8,), slot)
