"""What is measured is right before it is quick, and the command says it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import weft
from weft import CPU, cli
from weft.inspect.bench import COLLECTIVES, count, measurements
from weft.inspect.limits import written_everywhere, written_once
from weft.inspect.links import partners
from weft.inspect.timing import Contender, contest
from weft.inspect.transitions import TRANSITIONS, MatrixTransition
from weft.planning import Tier, Topology, use_topology
from weft.runtime import machine
from weft.sharding import make_mesh

DEVICES = [CPU(i) for i in range(8)]
NEEDING = {"R→S0": 0, "(dp·tp, –)→(tp·dp, –)": 6}
"""How many devices do not hold already what they should hold afterwards; all 8 elsewhere."""


@pytest.fixture(params=[False, True], ids=["one memory", "separate memories"])
def memory(request):
    before = machine.ownership.separate_memory
    machine.use_separate_memory(request.param)
    yield
    machine.use_separate_memory(before)


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda t: t.name)
def test_a_transition_and_its_limits_give_the_same_value(transition: MatrixTransition, memory):
    mesh = transition.mesh(DEVICES)
    parts = [torch.randn(16, 24) for _ in range(transition.contributions(mesh))]
    x = transition.tensor(mesh, parts)
    y = weft.shard(x, mesh, transition.target)
    total = torch.stack(parts).sum(0)
    torch.testing.assert_close(x.full_tensor(), total)
    torch.testing.assert_close(y.full_tensor(), total)
    torch.testing.assert_close(written_once(parts)(), total)
    written = written_everywhere(*transition.layouts(mesh), parts)()
    shards = y.local_shards
    for out in written:
        assert any(out.shape == shard.shape and torch.allclose(out, shard, atol=1e-5) for shard in shards)
    assert len(written) == NEEDING.get(transition.name, 8)


def test_twelve_transitions_and_every_collective_are_measured():
    assert len({t.name for t in TRANSITIONS}) == 12
    said = {name.split()[0] for name in COLLECTIVES}
    assert {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "ppermute", "distributed_broadcast"} <= said


def test_as_many_rows_are_measured_as_were_announced():
    assert len(list(measurements(DEVICES[:4], [256, 4096], 0.0))) == count([256, 4096])


def test_contenders_take_turns_and_are_prepared_each_time():
    turns: list[str] = []
    first = Contender(lambda: turns.append("a"), prepare=lambda: turns.append("before a"))
    timings = contest({"a": first, "b": lambda: turns.append("b")}, seconds=0, least=2, warm=1)
    assert [turn for turn in turns if turn != "b"] == ["before a", "a"] * 3
    rounds = [sorted(turns[i : i + 3]) for i in range(0, 9, 3)]
    assert rounds == [["a", "b", "before a"]] * 3
    assert timings["a"].rounds == timings["b"].rounds == 2


def test_the_command_prints_a_table_or_json():
    words = ["bench", "--devices", "2", "--mib", "0.001", "--seconds", "0"]
    table = CliRunner().invoke(cli.main, words)
    assert table.exit_code == 0, table.output
    assert "weft on 2 × CPU" in table.output
    assert "all_to_all" in table.output
    said = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)
    assert said["devices"] == 2
    assert len(said["rows"]) == count([1])
    assert said["rows"][0]["weft"]["median"] > 0


def test_links_are_measured_and_kept(tmp_path: Path):
    file = tmp_path / "links.json"
    words = ["bench", "--links", "--mib", "0.01", "--keep", str(file)]
    shown = CliRunner().invoke(cli.main, words)
    assert shown.exit_code == 0, shown.output
    assert f"kept in {file}: programs go by it with WEFT_TOPOLOGY={file}" in shown.output.replace("\n", "")
    assert [line.split()[-1] for line in shown.output.splitlines()[1:5]] == [
        "measured",
        "measured",
        "assumed",
        "assumed",
    ]
    for said in (str(file), file):
        with use_topology(said) as found:
            assert found.host.bandwidth > 0
    said = json.loads(CliRunner().invoke(cli.main, [*words, "--json"]).stdout)
    assert Topology.from_dict(said).devices_per_host is None


def test_partners_are_just_so_far_apart_and_each_has_one():
    mesh = make_mesh({"a": 6})
    machine = Topology(hosts=(0, 0, 1, 1, 1, 2))
    for tier in (Tier.HOST, Tier.RACK):
        pairs = [(slot, to) for slot, to in enumerate(partners(mesh, machine, tier)) if to is not None]
        assert len({to for _, to in pairs}) == len(pairs) >= 4
        assert {machine.tier(mesh.devices[slot], mesh.devices[to]) for slot, to in pairs} == {tier}
