"""Pipelines on paper: each stage's device in its own time, and bytes, memory and bubbles as they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import weft
from weft import P
from weft.paper.showing.report import StepReport
from weft.planning import Link

INSTANT = Link(0.0, 1e18)
EVEN = weft.Machine(
    "even",
    {4: 1e12},
    1 << 40,
    1e18,
    weft.Topology(INSTANT, INSTANT, INSTANT, INSTANT),
    products=1.0,
    streaming=1.0,
    launch=0.0,
)
"""A machine on which only products of matrices take time."""


class Block(nn.Module):
    """Two linear maps with a nonlinear one in between."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def made(devices: list[weft.Device], places: int, schedule: str = "1f1b") -> tuple[weft.nn.Pipeline, torch.Tensor]:
    each = len(devices) // places
    meshes = [
        weft.DeviceMesh(devices[at * each : (at + 1) * each], (each // 2, 2), ("dp", "tp")) for at in range(places)
    ]
    on_paper = len(devices) > 8
    with torch.device("meta" if on_paper else "cpu"):
        stages = [nn.Sequential(*(Block() for _ in range(4))) for _ in range(places)]
        x = torch.empty(256, 64) if on_paper else torch.randn(256, 64)
    for stage, mesh in zip(stages, meshes, strict=True):
        weft.nn.shard_module(stage, mesh, {"*.up.*": P("tp"), "*.down.weight": P(None, "tp")})
    return weft.nn.pipeline(stages, meshes, schedule, microbatches=8, loss=F.mse_loss, batch=P("dp")), x


def step(pipe: weft.nn.Pipeline, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    pipe.step(x, x)
    optimizer.step()


def priced(pipe: weft.nn.Pipeline, x: torch.Tensor, machine: weft.Machine | str = "h100") -> StepReport:
    return weft.dryrun(step, pipe, torch.optim.AdamW(pipe.parameters()), x, topology=machine)


def test_a_pipeline_moves_on_paper_what_it_moves() -> None:
    pipe, x = made(list(weft.make_mesh({"a": 8}).devices), 2)
    report = priced(pipe, x)
    with weft.comm_log() as log:
        step(pipe, torch.optim.AdamW(pipe.parameters()), x)
    assert report.devices == 8
    assert report.bytes_received == log.bytes_received
    assert report.bytes_by("kind")["exchange"] == sum(r.bytes_received for r in log if r.kind == "exchange")


def test_each_stage_holds_its_own_parameters_and_computes_on_them_alone() -> None:
    pipe, x = made([weft.Accelerator(1000 + i) for i in range(64)], 4)
    report = priced(pipe, x)
    stage = sum(p.local_shards[0].nbytes for p in pipe.stages[0].parameters())  # type: ignore[attr-defined]
    assert report.devices == 64
    assert report.memory.most["parameters"] == stage
    assert report.memory.most["gradients"] == stage
    assert report.memory.most["optimizer state"] == 2 * stage
    steps = [each for each in report.operations if each.op.startswith("_foreach")]
    assert len({each.device for each in steps}) == 4
    assert report.exposed <= report.moving


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_places_wait_on_paper_as_the_schedule_says(schedule: str) -> None:
    pipe, x = made([weft.Accelerator(1000 + i) for i in range(8 * 4)], 4, schedule)
    report = priced(pipe, x, EVEN)
    assert report.idle == pytest.approx(pipe.schedule.bubble, abs=0.03)
