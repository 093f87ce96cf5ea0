"""Groups meet through their signal buffers: nobody leaves before everybody has come, any number of times."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.kernels.peer import SIZE
from weft.kernels.signals import SIGNAL_BYTES, signal_buffer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.multiprocess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        (tmp_path / f"input{i}").write_bytes(bytes(SIZE * 4))
        (tmp_path / f"output{i}").write_bytes(bytes(SIZE * 4))
        (tmp_path / f"signal{i}").write_bytes(bytes(SIGNAL_BYTES))
    return tmp_path


@contextmanager
def peer(folder: Path, me: int, peers: int, rounds: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.kernels.peer", str(folder), str(me), str(peers), str(rounds)]
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_nobody_leaves_before_everybody_has_come(folder: Path):
    with peer(folder, 0, 3, 16) as first, peer(folder, 2, 3, 16) as third:
        arrivals = torch.from_file(str(folder / "signal1"), shared=True, size=SIGNAL_BYTES // 4, dtype=torch.int32)
        while int(arrivals.sum()) < 2 and first.poll() is None and third.poll() is None:
            time.sleep(0.05)
        time.sleep(0.3)
        assert (first.poll(), third.poll(), int(arrivals.sum())) == (None, None, 2)
        # Sixteen rounds follow, every second one without the peer that was late, each checked by the peers.
        with peer(folder, 1, 3, 16) as second:
            said = [process.communicate(timeout=90)[0] for process in (first, second, third)]
            assert [process.returncode for process in (first, second, third)] == [0, 0, 0], said


def test_a_signal_buffer_starts_at_zero():
    buffer = signal_buffer("cpu")
    assert buffer.nbytes == SIGNAL_BYTES
    assert not bool(buffer.any())
