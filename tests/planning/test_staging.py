"""Staged plans are as fast as any staging, by the cost model, and cross slow links as little."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from weft.devices import CPU
from weft.planning import Link, Plan, Tier, Topology, plan_layouts
from weft.planning.costs.cost import step_time
from weft.planning.staging.link_load import LinkLoad
from weft.planning.staging.multicast import multicast
from weft.planning.staging.stages import Stages
from weft.planning.staging.step_loads import link_loads
from weft.sharding import DeviceMesh, ReduceOp, make_mesh
from weft.sharding.layout import Layout

from .stagings import Stagings
from .test_bounds import laid

H100 = Topology.preset("h100")
MIB = 1 << 20


@pytest.mark.parametrize(
    ("hosts", "devices", "shape", "turned"),
    [(2, 2, (768, 3072), False), (2, 2, (768, 3072), True), (3, 2, (1001, 777), False), (4, 4, (100003,), True)],
)
def test_no_staging_is_faster(hosts, devices, shape, turned):
    """The whole comparison, all hosts and devices from 2 to 4, is in `benchmarks/staging.py`."""
    assert max(Stagings(hosts, devices, shape, turned=turned).ratios()) <= 1.05


def on_h100(hosts: int, axes: dict[str, int], source: tuple[str, ...], pending: tuple[str, ...]) -> Plan:
    mesh = DeviceMesh([CPU(i) for i in range(hosts * 8)], tuple(axes.values()), tuple(axes))
    before = Layout(mesh, (source,), dict.fromkeys(pending, ReduceOp.SUM))
    return plan_layouts(before, Layout(mesh, ((),)), (16 * MIB,), 4, topology=H100)


@pytest.mark.parametrize("hosts", [4, 64])
@pytest.mark.parametrize("named", [True, False], ids=["hosts are an axis", "one axis over all hosts"])
def test_on_hosts_of_eight_the_slow_link_carries_each_byte_once(hosts, named):
    axes = {"host": hosts, "device": 8} if named else {"x": hosts * 8}
    names, size = tuple(axes), 64 * MIB
    far = H100.rack if hosts <= 4 else H100.fabric
    between = far.latency + size / 8 * (1 - 1 / hosts) / far.bandwidth
    inside = H100.host.latency + size * 7 / 8 / H100.host.bandwidth
    gather = on_h100(hosts, axes, names, ())
    assert gather.estimated_time <= 1.1 * (between + inside)
    reduce = on_h100(hosts, axes, (), names)
    assert reduce.estimated_time <= 1.1 * 2 * (between + inside)
    for plan in (gather, reduce):
        straight = sum(step_time(replace(step, stages=None), H100) for step in plan.steps)
        assert straight > 3.5 * plan.estimated_time


def test_small_tensors_go_straight():
    mesh = make_mesh({"h": 2, "d": 4})
    plan = plan_layouts(laid(mesh, "hd"), laid(mesh, ""), (64,), 4, topology=Topology(devices_per_host=4))
    assert [step.stages for step in plan.steps] == [None]


def test_a_broadcast_enters_each_host_once():
    one, many = DeviceMesh.single(CPU(0)), DeviceMesh([CPU(i) for i in range(8, 16)], (8,), ("a",))
    hosts = Topology(devices_per_host=4)
    plan = plan_layouts(Layout(one, ((),)), Layout(many, ((),)), (MIB,), 4, topology=hosts)
    assert [step.described for step in plan.steps] == ["exchange, host by host"]
    enters, passes = link_loads(plan.steps[0], hosts)
    assert enters == LinkLoad(0, MIB, 0)
    assert passes == LinkLoad(3 * MIB, 0, 0)
    stages = plan.steps[0].stages
    routes = multicast(plan.source, plan.target, plan.shape, stages)
    crossing = sum(t.box[0][1] - t.box[0][0] for slot in range(8) for t in routes.receives(0, slot))
    assert crossing == 2 * MIB  # once for each of two hosts, instead of for each of eight devices


def test_hosts_of_different_sizes_are_told_apart():
    mesh = make_mesh({"a": 5})
    uneven = Topology(host=Link(0.0, 1e9), rack=Link(0.0, 1e6), hosts=(0, 0, 0, 1, 1))
    plan = plan_layouts(laid(mesh, "a"), laid(mesh, ""), (1000,), 4, topology=uneven)
    loads = link_loads(plan.steps[0], uneven)
    assert plan.steps[0].stages == Stages(uneven, Tier.HOST)
    assert loads[0].rack == 600 * 4 / 2  # the host of two has most to bring in: three fifths, shared by two


def test_planning_ten_thousand_devices_takes_milliseconds():
    mesh = make_mesh({"host": 1280, "device": 8}, devices=[CPU(i) for i in range(10240)])
    pairs = [
        (laid_on(mesh, ("host", "device"), ()), laid_on(mesh, (), ())),
        (laid_on(mesh, (), (), "host", "device"), laid_on(mesh, (), ())),
        (laid_on(mesh, ("host",), ("device",)), laid_on(mesh, ("device",), ("host",))),
    ]
    for source, target in pairs:
        taken = []
        for rows in (20480, 10240, 5120):
            start = time.perf_counter()
            plan_layouts(source, target, (rows, 20480), 4, topology=H100)
            taken.append(time.perf_counter() - start)
        assert min(taken) < 1.0  # some 10 ms are usual; this catches loops over pairs, not a busy machine


def laid_on(mesh: DeviceMesh, rows: tuple[str, ...], columns: tuple[str, ...], *pending: str) -> Layout:
    return Layout(mesh, (rows, columns), dict.fromkeys(pending, ReduceOp.SUM))
