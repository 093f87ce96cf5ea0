"""Models with experts train as on one device when these are split, and only tokens travel."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs transformers: make test-models")

import weft
from tests.models.expert_models import MODELS, differences
from tests.multiprocess.launching import Processes

PROGRAM = Path(__file__).with_name("expert_processes.py")
PATIENCE = 600


@pytest.mark.parametrize("name", MODELS)
def test_ten_steps_lose_what_one_device_loses(name: str, memory: str) -> None:
    assert differences(name, weft.make_mesh({"ep": 4})) == []


@pytest.mark.parametrize("name", MODELS)
def test_a_loop_over_experts_sends_tokens_too(name: str, memory: str) -> None:
    assert differences(name, weft.make_mesh({"ep": 4}), how="eager", count=2) == []


@pytest.mark.multiprocess
@pytest.mark.timeout(PATIENCE + 100)
@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_several_processes_do_too(processes: int, devices: int) -> None:
    with Processes([str(PROGRAM), str(devices)], processes, fresh=True) as started:
        ended = started.wait(PATIENCE)
    assert [(how.status, how.out.strip() or how.err[-4000:]) for how in ended] == [
        (0, "all as on one device")
    ] * processes
