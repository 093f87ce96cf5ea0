"""What a checkpoint takes, without writing or reading it."""

from __future__ import annotations

from math import prod

import pytest
import torch

import weft
from weft import P
from weft.checkpoint import CheckpointError, plan_load, plan_save, save
from weft.checkpoint.files.opening import index_at
from weft.sharding.geometry import box_shape

DEVICES = [weft.Accelerator(i) for i in range(512)]


def on_paper(patterns: dict[str, P]) -> torch.nn.Module:
    """A model on devices that nobody has."""
    mesh = weft.make_mesh({"dp": 64, "tp": 8}, devices=DEVICES)
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1000))
    return weft.nn.shard_module(model, mesh, patterns)


def test_each_shard_is_written_once_and_the_work_is_shared():
    model = on_paper({"0.weight": P("tp"), "1.weight": P(None, "tp")})
    plan = plan_save(model)
    assert plan.total == sum(x.nbytes for x in model.parameters())
    assert plan.most == 4096 * 1024 * 4 // 8  # no replica writes a second shard before all have one
    assert plan.seconds(plan.most) == 1.0


def test_split_weights_are_written_by_all():
    plan = plan_save(on_paper({"0.weight": P(("dp", "tp")), "1.weight": P(None, ("dp", "tp")), "*": P()}))
    assert all(plan.by_process)
    assert plan.most < 1.01 * plan.total / 512 + 4 * (4096 + 1000)


def test_a_state_of_optimizers_and_numbers_is_planned_too():
    model = on_paper({"0.weight": P("tp")})
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for x in model.parameters():
        x.grad = torch.zeros_like(x)
    optimizer.step()
    plan = plan_save({"model": model, "optimizer": optimizer, "step": 3})
    assert plan.total == 2 * sum(x.nbytes for x in model.parameters())


def test_every_process_reads_what_it_will_hold():
    saved = on_paper({"0.weight": P("tp"), "1.weight": P(None, "tp")})
    same, whole = plan_load(saved), plan_load(saved, weft.NamedMapping(weft.make_mesh({"x": 2}), P()))
    assert same.by_process == (4096 * 1024 * 4 // 8 + 1000 * 4096 * 4 // 8 + 4 * (4096 + 1000),) * 512
    assert whole.by_process == (sum(x.nbytes for x in saved.parameters()),) * 2
    split = plan_load(saved, {"*": weft.NamedMapping(weft.make_mesh({"x": 2}), P("x"))})
    assert split.total == whole.most


def test_what_is_tied_is_written_once(tmp_path):
    tied = weft.shard(torch.arange(30.0).view(5, 6), weft.make_mesh({"a": 2, "b": 2}), P("a"))
    state = {"x": tied, "y": tied, "whole": torch.ones(3)}
    save(state, tmp_path / "there")
    tensors = index_at(tmp_path / "there").tensors.values()
    shards = {shard.key: each.dtype.itemsize * prod(box_shape(shard.box)) for each in tensors for shard in each.shards}
    assert plan_save(state).total == sum(shards.values()) == (30 + 3) * 4


def test_what_cannot_be_planned_is_said():
    model = on_paper({})
    with pytest.raises(CheckpointError, match=r"'0.weight' is saved, but not in what it is loaded into: add it"):
        plan_load(model, {"other": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"'a' is saved as \(2,\), but loaded into \(3,\): shapes must be equal"):
        plan_load({"a": torch.ones(2)}, {"a": torch.ones(3)})
    with pytest.raises(ValueError, match="disk is more than 0 bytes a second, but got 0"):
        plan_save(model).seconds(0)
    with pytest.raises(CheckpointError, match=r"what saving it would take \(weft.checkpoint.plan_save\)"):
        save(model, "nowhere")
