"""Saving and loading take a bucket of memory above the state, however large that is."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.peak_memory import COLUMNS, COUNT, ROWS
from weft.checkpoint.memory import BUCKET

STATE = ROWS * COLUMNS * COUNT * 4


@pytest.fixture(params=["separate"], autouse=True)
def memory(request: pytest.FixtureRequest) -> str:
    """A process by itself has its memories apart."""
    return request.param


@pytest.mark.multiprocess
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells no peak since a moment")
def test_a_save_and_a_load_take_at_most_a_bucket(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.checkpoint.peak_memory", str(tmp_path)]
    environment = {**os.environ, "WEFT_SEPARATE_MEMORY": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    peaks: dict[str, int] = ast.literal_eval(ended.stdout)
    whole = peaks.pop("whole")
    assert all(taken <= BUCKET for taken in peaks.values()), peaks
    assert whole > STATE // 2, "what is loaded into new tensors takes memory, which this would see"
