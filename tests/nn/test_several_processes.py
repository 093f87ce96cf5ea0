"""Processes that share a model step together, save it together, and one process loads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import weft
from tests.multiprocess.launching import Processes
from tests.nn.several_processes import trained

PROGRAM = Path(__file__).with_name("several_processes.py")
STEPPING = Path(__file__).with_name("stepping_processes.py")


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_two_processes_save_and_one_loads(tmp_path: Path) -> None:
    with Processes([str(PROGRAM), str(tmp_path)], 2) as processes:
        ended = processes.wait(200)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
    files = sorted(path.name.split("-")[2] for path in tmp_path.glob("*.safetensors"))
    assert files == ["00000", "00001"]
    plain, _, _ = trained()
    state = weft.checkpoint.load(tmp_path)
    assert state["step"] == 3
    for name, x in plain.state_dict().items():
        torch.testing.assert_close(state["model"][name].cpu(), x, rtol=1e-9, atol=1e-12)


@pytest.mark.multiprocess
def test_optimizers_step_on_the_pieces_that_each_process_has() -> None:
    with Processes([str(STEPPING)], 2) as processes:
        ended = processes.wait(100)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
