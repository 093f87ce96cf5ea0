"""The trainer: data × tensor × pipeline parallel has the losses of one device, and goes on after a process was killed."""

from __future__ import annotations

import json
import os
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.multiprocess.launching import ROOT, Processes
from weft.runtime import machine

PROGRAM = ROOT / "examples" / "train.py"
SMALL = [
    "--dtype",
    "float64",
    "--layers",
    "2",
    "--width",
    "16",
    "--heads",
    "2",
    "--words",
    "16",
    "--length",
    "4",
    "--microbatches",
    "4",
]


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step, as it was said last."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {int(line["step"]): line["loss"] for line in lines}


@pytest.mark.parametrize(
    ("memory", "flags"), [("separate", ["--schedule", "zb-h1", "--fsdp"]), ("unified", ["--fsdp"])]
)
def test_eight_devices_have_the_losses_of_one(
    memory: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 × 2 × 2 in one process, for 10 steps; the program itself compares."""
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), *SMALL, *flags, "--folder", str(tmp_path)])
    machine.use_separate_memory(memory == "separate")
    try:
        runpy.run_path(str(PROGRAM), run_name="__main__")
    finally:
        machine.use_separate_memory(False)
    assert "the losses of 10 steps are those of one device" in capsys.readouterr().out
    assert sorted(losses(tmp_path)) == list(range(10))


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_four_processes_with_two_devices_have_the_losses_of_one(tmp_path: Path) -> None:
    with Processes([str(PROGRAM), *SMALL, "--fsdp", "--folder", str(tmp_path)], 4) as started:
        ended = started.wait(200)
    assert [process.status for process in ended] == [0] * 4, "\n".join(process.err for process in ended)
    assert "the losses of 10 steps are those of one device" in ended[0].out


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
def test_it_goes_on_after_a_process_was_killed(tmp_path: Path) -> None:
    """torchrun starts all of them again; the program compares what follows with one device that was never killed."""
    step = random.randint(3, 9)  # there is a checkpoint by then
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    flags = [*SMALL, "--folder", str(tmp_path), "--fail-at", str(step)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, str(PROGRAM), *flags], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, f"killed at step {step}: {ended.stderr}"
    assert (tmp_path / "failed").exists()
    resumed = step - step % 2
    assert f"from step {resumed}" in ended.stdout
    assert f"the losses of {10 - resumed} steps are those of one device" in ended.stdout
    assert sorted(losses(tmp_path)) == list(range(10))
