"""The closed form of prices goes along with the planner's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from weft.devices import Accelerator
from weft.planning import Link, Processor, Topology, plan_layouts
from weft.planning.costs.axis_cost import axis_cost
from weft.sharding.layout import Layout
from weft.sharding.mesh import DeviceMesh, make_mesh
from weft.sharding.placements import ReduceOp

SHAPE = (64, 256, 512)


def layouts(mesh: DeviceMesh) -> Iterator[Layout]:
    """Each axis splits a dim, holds a pending sum, or does neither."""
    for places in product((-2, -1, 0, 1), repeat=2):
        splits: list[list[str]] = [[], [], []]
        pending = {}
        for axis, place in zip(mesh.axis_names, places, strict=True):
            if place >= 0:
                splits[place].append(axis)
            elif place == -2:
                pending[axis] = ReduceOp.SUM
        yield Layout(mesh, splits, pending)


def test_the_closed_form_is_near_the_planner_on_one_host() -> None:
    mesh = make_mesh({"dp": 2, "tp": 4}, devices=[Accelerator(i) for i in range(8)])
    topology = Topology.preset("h100")
    ratios = []
    for source, target in product(layouts(mesh), repeat=2):
        if not set(target.pending_axes) <= set(source.pending_axes):
            continue
        planned = plan_layouts(source, target, SHAPE, 4, topology=topology).estimated_time
        closed = axis_cost(source, target, 4 * 64 * 256 * 512, topology)
        assert bool(planned) == bool(closed), (str(source), str(target))
        if planned:
            ratios.append(closed / planned)
    assert sum(0.85 <= ratio <= 1.15 for ratio in ratios) >= 0.75 * len(ratios)
    assert 0.4 < min(ratios)
    assert max(ratios) < 2


@pytest.mark.parametrize(
    ("source", "target", "pending"),
    [
        (((), ("tp",)), ((), ()), ()),
        ((("dp",), ()), ((), ()), ()),
        (((), ()), ((), ()), ("dp",)),
        (((), ()), ((), ()), ("tp",)),
        (((), ()), (("dp",), ()), ("dp",)),
        ((("tp",), ()), ((), ("tp",)), ()),
        ((("dp",), ()), ((), ("dp",)), ()),
        ((("tp", "dp"), ()), (("tp",), ()), ()),
        ((("tp",), ()), (("tp",), ()), ("dp",)),
    ],
)
def test_usual_movements_between_hosts(
    source: tuple[tuple[str, ...], ...], target: tuple[tuple[str, ...], ...], pending: tuple[str, ...]
) -> None:
    mesh = make_mesh({"dp": 2, "tp": 8}, devices=[Accelerator(i) for i in range(16)])
    topology = Topology.preset("h100")
    before, after = Layout(mesh, source, dict.fromkeys(pending, ReduceOp.SUM)), Layout(mesh, target)
    for rows in (1, 4096):
        planned = plan_layouts(before, after, (16 * rows, 1024), 4, topology=topology).estimated_time
        assert axis_cost(before, after, 4 * 16 * rows * 1024, topology) == pytest.approx(planned, rel=0.1), rows


@pytest.mark.parametrize("pending", [("dp", "tp"), ("dp",), ("tp",)])
@pytest.mark.parametrize("split", [(), ("dp", "tp"), ("tp", "dp")])
def test_little_and_much_between_racks(split: tuple[str, ...], pending: tuple[str, ...]) -> None:
    """Little goes straight, much goes host by host or rack by rack."""
    mesh = make_mesh({"dp": 8, "tp": 8}, devices=[Accelerator(i) for i in range(64)])
    topology = Topology.preset("h100")
    before, after = Layout(mesh, ((), ()), dict.fromkeys(pending, ReduceOp.SUM)), Layout(mesh, (split, ()))
    for rows in (1, 4096):
        planned = plan_layouts(before, after, (64 * rows, 1024), 4, topology=topology).estimated_time
        assert axis_cost(before, after, 4 * 64 * rows * 1024, topology) == pytest.approx(planned, rel=0.2), rows


def test_links_are_no_faster_than_the_processors_that_work_for_them() -> None:
    mesh = make_mesh({"dp": 4})
    rows, whole = Layout(mesh, (("dp",), ())), Layout(mesh, ((), ()))
    slow = Topology(host=Link(0.0, 1e9, alone=2.0), processor=Processor(5e8, 1e9, 1e12))
    planned = plan_layouts(rows, whole, (1024, 1024), 4, topology=slow).estimated_time
    assert axis_cost(rows, whole, 4 << 20, slow) == pytest.approx(planned, rel=0.01)
    assert axis_cost(rows, whole, 4 << 20, Topology(host=Link(0.0, 1e9))) == pytest.approx(planned / 2, rel=0.01)
