"""`torch.compile` over several processes: communication is part of the compiled program."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.multiprocess.launching import Processes

PROGRAM = str(Path(__file__).with_name("compiled.py"))


@pytest.mark.multiprocess
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "backend",
    [
        "aot_eager",
        pytest.param(
            "inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles C++ on CPUs")
        ),
    ],
)
def test_two_processes_compile(backend: str) -> None:
    with Processes([PROGRAM, backend], 2, {"TORCHINDUCTOR_COMPILE_THREADS": "1"}) as processes:
        ended = processes.wait(200)
    assert [process.status for process in ended] == [0, 0], ended[0].err + ended[1].err
