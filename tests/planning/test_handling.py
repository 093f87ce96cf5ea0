"""What processors do for a hop: messages, copies, and cores that are shared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.planning import Link, Topology, step_between
from weft.planning.costs.cost import step_time
from weft.planning.staging.handling import Handling, handling
from weft.planning.staging.sharing import shared_out
from weft.planning.staging.stages import Stages
from weft.planning.staging.step_loads import link_loads
from weft.planning.topology import Processor, Tier
from weft.runtime.processes.transport.messages import part
from weft.sharding import ReduceOp, make_mesh
from weft.sharding.geometry import is_stretch
from weft.sharding.layout import Layout

MESH = make_mesh({"a": 2, "b": 2})
EVERY = ("a", "b")
WHOLE, ROWS, COLUMNS = Layout(MESH, ((), ())), Layout(MESH, (EVERY, ())), Layout(MESH, ((), EVERY))
SUMMED = Layout(MESH, ((), ()), dict.fromkeys(EVERY, ReduceOp.SUM))
SHAPE, BYTES = (256, 256), 256 * 256 * 4
SHARED = Topology(host=Link(0.0, 1e12), processor=Processor(1e9, 2e9, 4e9, message=1e-3, alone=2.0))


def hops(source: Layout, target: Layout) -> tuple[Handling, ...]:
    return handling(step_between(source, target, SHAPE, 4))


@st.composite
def boxes_in_boxes(draw: st.DrawFn) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    cuts = [sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True))) for size in shape]
    return tuple((low, high) for low, high in cuts), shape


@given(boxes_in_boxes())
def test_a_stretch_is_what_leaves_from_its_place(case):
    inner, shape = case
    assert is_stretch(inner, tuple((0, size) for size in shape)) == (part(0, inner, shape).stretch is not None)


def test_rows_arrive_in_their_place_and_columns_are_copied_there():
    assert hops(ROWS, WHOLE) == (Handling(3, BYTES // 4),)  # what a device had
    assert hops(COLUMNS, WHOLE) == (Handling(3, BYTES),)
    assert hops(ROWS, COLUMNS) == (Handling(3, BYTES // 4),)  # packed, and what it keeps; others arrive in their place


def test_contributions_to_columns_are_packed():
    assert hops(SUMMED, ROWS) == (Handling(3, 0),)
    assert hops(SUMMED, COLUMNS) == (Handling(3, BYTES * 3 // 4),)
    assert hops(SUMMED, WHOLE) == (Handling(3, 0), Handling(3, 0))  # stretches of the flat tensor


def test_shards_that_stay_are_not_copied():
    grid, turned = Layout(MESH, (("a",), ("b",))), Layout(MESH, (("b",), ("a",)))
    assert hops(grid, turned) == (Handling(1, 0),)


def test_each_message_but_the_first_takes_its_time():
    one = Layout(MESH, (("a",), ()))
    all_, pairs = (step_between(*each, SHAPE, 4) for each in ((ROWS, WHOLE), (ROWS, one)))
    quiet = replace(SHARED, processor=replace(SHARED.processor, message=0.0))
    assert step_time(all_, SHARED) - step_time(all_, quiet) == pytest.approx(2e-3)
    assert step_time(pairs, SHARED) == step_time(pairs, quiet)


def test_processors_are_faster_where_others_have_nothing_to_do():
    swapped = step_between(Layout(MESH, (("a",), ("b",))), Layout(MESH, (("b",), ("a",))), SHAPE, 4)
    (hop,) = link_loads(swapped, SHARED)
    assert (hop.busy, hop.total) == (0.5, BYTES / 4)  # two of four change places
    assert step_time(swapped, SHARED) == pytest.approx(BYTES / 4 / 1e9 * 0.5)
    crowded = replace(SHARED, processor=replace(SHARED.processor, alone=1.0))
    assert step_time(swapped, crowded) == pytest.approx(BYTES / 4 / 1e9)


def test_a_cable_carries_more_for_one_where_others_send_nothing():
    swapped = step_between(Layout(MESH, (("a",), ("b",))), Layout(MESH, (("b",), ("a",))), SHAPE, 4)
    hosts = Topology(rack=Link(0.0, 1e6, alone=2.0), devices_per_host=2)
    own = replace(hosts, rack=Link(0.0, 1e6))
    assert step_time(swapped, own) == pytest.approx(BYTES / 4 / 1e6)
    assert step_time(swapped, hosts) == pytest.approx(BYTES / 4 / 2e6)  # one of the two in each host changes places
    gathered = step_between(ROWS, WHOLE, SHAPE, 4)
    assert step_time(gathered, hosts) == step_time(gathered, own)


def test_a_sum_takes_the_time_of_its_two_hops():
    reduced, scattered, gathered = (
        step_time(step_between(*each, SHAPE, 4), SHARED) for each in ((SUMMED, WHOLE), (SUMMED, ROWS), (ROWS, WHOLE))
    )
    own = BYTES / 4 / SHARED.processor.copying  # reduced in its place, where a gather copies it there
    assert reduced == pytest.approx(scattered + gathered - own)


@pytest.mark.parametrize("target", [WHOLE, ROWS], ids=["whole", "rows"])
def test_staged_reductions_have_a_row_for_each_hop(target):
    step = step_between(SUMMED, target, SHAPE, 4)
    hosts = replace(SHARED, devices_per_host=2)
    staged = replace(step, stages=Stages(hosts, Tier.HOST))
    assert len(handling(staged)) == len(link_loads(staged, hosts)) == (4 if target is WHOLE else 2)
    # Results enter from the other host and from the one beside: two messages.
    assert [hop.messages for hop in handling(staged)] == ([1, 1, 2, 1] if target is WHOLE else [1, 1])


def test_shares_of_what_enters_a_host_are_stretches_where_they_can_be():
    wide = ((0, 128), (0, 4096))
    assert all(is_stretch(each.box, wide) for each in shared_out([([5], wide)], [0, 1]))
    few = ((0, 3), (0, 4096))  # rows would be 2 and 1
    assert [each.box for each in shared_out([([5], few)], [0, 1])] == [((0, 3), (0, 2048)), ((0, 3), (2048, 4096))]


def test_figures_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="a message takes 0 seconds or more, but got -1"):
        Processor(1e9, 1e9, 1e9, message=-1)
    with pytest.raises(
        ValueError, match=r"alone a device receives at least as much as beside others, but got 0.5 times"
    ):
        Link(0.0, 1.0, alone=0.5)
    with pytest.raises(ValueError, match=r"alone a processor is at least as fast as beside others, but got 0.5 times"):
        Processor(1e9, 1e9, 1e9, alone=0.5)
