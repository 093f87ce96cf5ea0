"""Under torchrun itself: the same file, words printed once, a clean end, and nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.multiprocess.launching import ROOT

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]

EXAMPLE = ROOT / "examples" / "many_processes.py"
LOSSES = "step 0: loss 2.360044599\nstep 1: loss 2.307599908\nstep 2: loss 2.448961558\n"
"""What one process prints, too."""


@contextmanager
def torchrun(*command: str, mark: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program under torchrun; leaving the block ends what is left of it."""
    mark = f"{mark} {os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MARK": mark, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            yield run
        finally:
            for process in marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def marked(mark: str) -> list[int]:
    """The processes that a run has started, and those that these have started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is not ours
            continue
        if f"MARK={mark}".encode() in words:
            found.append(int(entry.name))
    return found


def gone(mark: str) -> bool:
    """Whether nothing of a run is left, after some patience."""
    mark = f"{mark} {os.getpid()}"
    until = time.monotonic() + 60
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    return marked(mark) == []


def test_an_example_runs_unchanged() -> None:
    with torchrun(str(EXAMPLE), mark="example", WEFT_DEVICES_PER_PROCESS="4") as run:
        out, err = run.communicate(timeout=200)
        assert run.returncode == 0, err
        assert out == f"{LOSSES}2 processes, 8 devices\n"
        assert gone("example")


def test_the_doctor_says_once_what_processes_have_found() -> None:
    with torchrun("-m", "weft", "doctor", mark="doctor", WEFT_TOPOLOGY="h100") as run:
        out, err = run.communicate(timeout=200)
        assert run.returncode == 0, err
        assert out.count("processes          2, on one host") == 1
        assert out.count("links              400 GB/s and 8 µs within a host") == 1


def test_an_error_in_one_process_ends_the_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, weft\n"
        "x = weft.shard(torch.ones(4), weft.make_mesh({'a': 2}), weft.P('a'))\n"
        "assert float(x.sum()) == 4\n"
        "if weft.distributed.process_index() == 1:\n"
        "    raise ValueError('there is no data')\n"
        "x.sum().item()\n"
    )
    with torchrun(str(program), mark="error") as run:
        out, err = run.communicate(timeout=200)
        assert run.returncode == 1, out
        assert "ValueError: there is no data" in err
        assert gone("error")


def test_control_c_ends_the_run(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time, torch, weft\n"
        "x = weft.shard(torch.ones(4), weft.make_mesh({'a': 2}), weft.P('a'))\n"
        "x.sum().item()\n"  # all have joined, which cannot be interrupted
        "if weft.on_main():\n"
        "    print('ready', flush=True)\n"
        "while True:\n"
        "    x.sum().item()\n"
    )
    with torchrun(str(program), mark="interrupt") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        run.communicate(timeout=120)
        assert run.returncode != 0
        assert gone("interrupt")
