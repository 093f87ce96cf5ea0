"""The topology of the program: said, found, kept; everything that prices or plans goes by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import weft
from weft import P
from weft.planning import Topology, current_topology, move_cost, plan_layouts, use_topology
from weft.planning.topology.keeping import keep_topology, kept_file, said_topology
from weft.runtime.processes.hosts import topology_of_hosts
from weft.sharding import make_mesh

from .test_bounds import laid

HOSTS = Topology(devices_per_host=4)
MESH = make_mesh({"h": 2, "d": 4})


def test_what_is_said_holds_until_the_block_ends():
    before = current_topology()
    with use_topology(HOSTS) as said:
        assert said is current_topology() is HOSTS
        with use_topology("h100"):
            assert current_topology() == Topology.preset("h100")
        assert current_topology() is HOSTS
    assert current_topology() == before


def test_plans_and_prices_go_by_it():
    source, target = laid(MESH, "hd", ""), laid(MESH, "", "")
    flat = plan_layouts(source, target, (4096, 4096), 4)
    with use_topology(HOSTS):
        plan = plan_layouts(source, target, (4096, 4096), 4)
        assert move_cost(source, target, (4096, 4096), 4) == plan.estimated_time
    assert plan.topology is HOSTS
    assert [(step.kind, step.stages.name) for step in plan.steps if step.stages] == [("all_gather", "host by host")]
    assert [step.stages for step in flat.steps] == [None]
    assert plan.bytes_received == flat.bytes_received


def test_explain_says_through_what_a_step_goes():
    x = weft.shard(torch.ones(4096, 512), MESH, P(("h", "d"), None))
    with use_topology(HOSTS):
        text = str(weft.explain(x, P(None, None)))
    assert "all_gather, host by host" in text
    assert "host by host" not in str(weft.explain(x, P(None, None)))


def test_the_chooser_goes_by_it():
    """Either input may be brought to the other's layout: on one host it is the second, else the one that stays in its host."""
    mesh = make_mesh({"h": 2, "d": 2})
    rows = {axis: weft.shard(torch.ones(1024, 64), mesh, P(axis, None)) for axis in "hd"}
    assert (rows["d"] + rows["h"]).mapping.layout(2) == laid(mesh, "d", "")
    with use_topology(Topology(devices_per_host=2)):
        assert (rows["d"] + rows["h"]).mapping.layout(2) == laid(mesh, "h", "")
    assert (rows["d"] + rows["h"]).mapping.layout(2) == laid(mesh, "d", "")


def test_what_is_kept_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WEFT_TOPOLOGY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert said_topology() is None
    assert keep_topology(HOSTS) == kept_file()
    assert said_topology() == HOSTS
    monkeypatch.setenv("WEFT_TOPOLOGY", "h100")
    assert said_topology() == Topology.preset("h100")
    monkeypatch.setenv("WEFT_TOPOLOGY", str(kept_file()))
    assert said_topology() == HOSTS


def test_a_wrong_name_or_file_is_named(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"there is no topology 'dgx': use 'cpu', 'pcie', .*, or a file of `weft bench --links`"
    ):
        use_topology("dgx")
    file = tmp_path / "links.json"
    file.write_text(json.dumps({"speed": 1}))
    with pytest.raises(
        ValueError, match=r"links.json is no topology \(a topology has no 'speed' that is 1: it has device, "
    ):
        use_topology(str(file))
    with pytest.raises(TypeError, match="a topology is a Topology, the name of one or a file, but got 8"):
        use_topology(8)
    assert current_topology() == Topology()


def test_hosts_are_told_by_their_names():
    assert topology_of_hosts(["a", "a"], 2, Topology.preset("h100")).devices_per_host is None
    assert topology_of_hosts(["a", "a", "b", "b"], 2, Topology()).devices_per_host == 4
    uneven = topology_of_hosts(["a", "a", "b"], 2, Topology())
    assert uneven.hosts == (0, 0, 0, 0, 1, 1)
    assert uneven.tier(weft.CPU(3), weft.CPU(4)) is not uneven.tier(weft.CPU(4), weft.CPU(5))


def test_where_devices_are_is_said_once_and_of_all():
    with pytest.raises(ValueError, match="both say where devices are: give one of them"):
        Topology(devices_per_host=2, hosts=(0, 1))
    with pytest.raises(ValueError, match=r"says on which host 2 devices are, and CPU\(2\) is not among them"):
        Topology(hosts=(0, 1)).host_of(weft.CPU(2))
    with pytest.raises(ValueError, match="hosts has the number of a host, 0 or more, for each device id"):
        Topology(hosts=(0, -1))
