"""Topologies: how far, how fast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.devices import CPU, Accelerator
from weft.planning import Link, Tier, Topology, plan, plan_layouts
from weft.planning.costs.cost import mesh_tier
from weft.planning.staging.link_load import LinkLoad
from weft.planning.topology import PRESETS, Processor, axis_tier
from weft.sharding import DeviceMesh, make_mesh

from .test_bounds import laid

RACKS = Topology(devices_per_host=2, hosts_per_rack=2)


def test_tiers_are_told_by_ids():
    ids = [(0, Tier.DEVICE), (1, Tier.HOST), (3, Tier.RACK), (4, Tier.FABRIC)]
    assert [(i, RACKS.tier(Accelerator(0), Accelerator(i))) for i, _ in ids] == ids


def test_an_axis_is_as_far_as_its_farthest_neighbours():
    mesh = make_mesh({"a": 2, "b": 2, "c": 2})
    assert [axis_tier(mesh, axis, RACKS) for axis in "abc"] == [Tier.FABRIC, Tier.RACK, Tier.HOST]
    assert axis_tier(DeviceMesh([CPU(0)] * 4, (4,), ("a",)), "a", RACKS) is Tier.DEVICE


def test_meshes_are_as_far_as_their_nearest_devices():
    def mesh(*ids: int) -> DeviceMesh:
        return DeviceMesh([CPU(i) for i in ids], (len(ids),), ("a",))

    assert mesh_tier(mesh(0, 2), mesh(1, 3), RACKS) is Tier.HOST
    assert mesh_tier(mesh(0, 1), mesh(2, 3), RACKS) is Tier.RACK
    assert mesh_tier(mesh(0, 1), mesh(4, 5), RACKS) is Tier.FABRIC


def test_slow_links_take_longer():
    mesh = make_mesh({"a": 2, "b": 4})
    source, target = laid(mesh, "a", ""), laid(mesh, "", "")
    times = [plan_layouts(source, target, (4096, 4096), 4, topology=t).estimated_time for t in (Topology(), RACKS)]
    assert times[0] < times[1]


def test_time_is_latency_and_bytes_over_bandwidth():
    mesh = make_mesh({"a": 4})
    topology = Topology(host=Link(1.0, 100.0))
    gather = plan_layouts(laid(mesh, "a"), laid(mesh, ""), (400,), 1, topology=topology)
    assert gather.estimated_time == pytest.approx(1 + 300 / 100)
    reduce = plan_layouts(laid(mesh, "", pending="a"), laid(mesh, ""), (400,), 1, topology=topology)
    assert reduce.estimated_time == pytest.approx(2 + 600 / 100)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_get_slower_with_distance(name):
    topology = Topology.preset(name)
    links = [topology.link(tier) for tier in Tier]
    assert [link.bandwidth for link in links] == sorted((link.bandwidth for link in links), reverse=True)


def test_errors_say_what_is_known():
    with pytest.raises(ValueError, match=r"unknown topology 'dgx': use one of 'cpu', 'pcie', 'a100', 'h100', "):
        Topology.preset("dgx")
    with pytest.raises(ValueError, match="devices_per_host is 1 or more, or None for all, but got 0"):
        Topology(devices_per_host=0)
    with pytest.raises(ValueError, match="the bandwidth of a link is more than 0 bytes a second, but got 0"):
        Link(0.0, 0)
    with pytest.raises(ValueError, match="the latency of a link is 0 seconds or more, but got -1"):
        Link(-1, 1)
    with pytest.raises(TypeError, match="bandwidth of a Link is a number, but got 'fast'"):
        Link(0.0, "fast")
    with pytest.raises(TypeError, match=r"host is a Link, but got 5: use Link\(latency=10e-6, bandwidth=10e9\)"):
        Topology(host=5)
    with pytest.raises(TypeError, match="processor is a Processor or None, but got 3"):
        Topology(processor=3)


@pytest.mark.parametrize("hosts", [(), 3, (0, True), (0, "a"), (0, -1)], ids=str)
def test_hosts_are_numbers_one_for_each_device(hosts):
    with pytest.raises(ValueError, match=r"hosts has the number of a host, .* use hosts=\(0, 0, 1, 1\)"):
        Topology(hosts=hosts)


def test_hosts_may_be_listed():
    assert hash(Topology(hosts=[0, 0, 1])) == hash(Topology(hosts=(0, 0, 1)))


def test_a_plan_takes_the_name_of_a_machine():
    mesh = make_mesh({"h": 4, "d": 8})
    rows, whole = laid(mesh, "hd", ""), laid(mesh, "", "")
    named = plan(rows, whole, (4096, 4096), "float32", topology="h100")
    assert named is plan(rows, whole, (4096, 4096), "float32", topology=Topology.preset("h100"))
    with pytest.raises(TypeError, match="a topology is a Topology, the name of one or a file, but got 3"):
        plan(rows, whole, (4096, 4096), "float32", topology=3)


def test_the_machine_at_hand_can_be_measured():
    measured = Topology.measure(1 << 20)
    assert measured.device.bandwidth > 1e6
    assert measured.host.bandwidth > 1e6
    assert 0 < measured.host.latency < 1


BUSY = Topology(host=Link(0.0, 4e9), rack=Link(0.0, 1e9), devices_per_host=2, processor=Processor(1e9, 2e9, 4e9))


def test_a_processor_works_for_all_links_at_once():
    load = LinkLoad(host=2e9, rack=1e9)
    assert load.time(replace(BUSY, processor=None)) == 1.0  # beside each other
    assert load.time(BUSY) == 3.0
    assert load.adding().time(BUSY) == 4.5
    assert load.time(replace(BUSY, processor=Processor(10e9, 2e9, 4e9))) == 1.0  # it is the cable that takes so long


@pytest.mark.parametrize("topology", [BUSY, replace(BUSY, devices_per_host=None)], ids=["hosts", "one host"])
def test_what_is_added_takes_longer_than_what_is_moved(topology):
    mesh = make_mesh({"a": 4})
    whole, rows, pending = laid(mesh, ""), laid(mesh, "a"), laid(mesh, "", pending="a")

    def seconds(source, target):
        return plan_layouts(source, target, (4 << 20,), 4, topology=topology).estimated_time

    gathered, scattered, reduced = seconds(rows, whole), seconds(pending, rows), seconds(pending, whole)
    assert gathered < scattered < reduced
    copied = 4 * (4 << 20) / 4 / 4e9  # what a device had; what it has reduced is there already
    assert reduced == pytest.approx(gathered + scattered - copied)
    alone = replace(topology, processor=None)
    assert plan_layouts(rows, whole, (4 << 20,), 4, topology=alone).estimated_time < gathered


def test_processors_are_written_down_with_the_links():
    assert Topology.from_dict(BUSY.to_dict()) == BUSY
    assert eval(repr(BUSY)) == BUSY
    with pytest.raises(ValueError, match="taking is more than 0 bytes a second, but got 0"):
        Processor(0.0, 1.0, 1.0)
