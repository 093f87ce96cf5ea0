"""What a dry run says is what happens: memory as a counting allocator sees it, bytes as several processes move them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from tests.multiprocess.launching import Processes
from tests.paper.counted import counted, facts
from tests.paper.llama import LAYOUTS, made, step
from weft.runtime import machine

PROGRAM = Path(__file__).with_name("counted.py")

IN_TURNS = ("whole batch", "sequences")
"""Layouts in which the devices of one process, one after another, hold something large for a moment."""


@pytest.fixture
def apart() -> Iterator[None]:
    """A memory for each device, as it will be."""
    machine.use_separate_memory(True)
    yield
    machine.use_separate_memory(False)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in IN_TURNS])
def test_the_peak_is_what_is_counted(layout: str) -> None:
    model, optimizer, ids = made(layout, blocks=2)
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    assert isinstance(ids, weft.Tensor)
    assert report.memory.peak == pytest.approx(counted(layout, blocks=2).peak / ids.mesh.num_devices, rel=0.03)


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("layout", ["heads and replicas", "split weights"])
def test_parameters_gradients_and_state_are_exact(layout: str) -> None:
    model, optimizer, ids = made(layout)
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    step(model, optimizer, ids)
    held = [x.local_shards[0].nbytes for x in model.parameters()]  # type: ignore[attr-defined]
    state = [
        x.local_shards[0].nbytes if isinstance(x, weft.Tensor) else 0
        for each in optimizer.state.values()
        for x in each.values()
    ]
    assert report.memory.most["parameters"] == sum(held)
    assert report.memory.most["gradients"] == sum(held)
    assert report.memory.most["optimizer state"] == sum(state)
    assert sum(state) == 2 * sum(held)


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.parametrize("processes", [2, 4])
def test_bytes_are_those_that_processes_move(processes: int) -> None:
    names = ["heads and split weights", "whole batch"] if processes == 4 else ["heads and replicas", "split rows"]
    with Processes([str(PROGRAM), str(4 // processes), *names], processes) as several:
        ended = several.wait(200)
    assert [process.status for process in ended] == [0] * processes, ended[0].err
    found = json.loads(ended[0].out)
    for name in names:
        report = weft.dryrun(step, *made(name), topology="h100")
        assert [facts(each.record) for each in report.movements] == found[name]["moved"]
        if name == "whole batch":  # with nothing that moves, a process holds what its device does, and a number or two
            assert report.memory.peak == pytest.approx(found[name]["peak"], rel=1e-4)
