"""Starting several processes of one program on this machine, as a launcher does, and ending them all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    status: int | None
    """None: it had to be killed."""
    out: str
    err: str
    seconds: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(process: int, count: int, port: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": "1",
        "RANK": str(process),
        "LOCAL_RANK": str(process),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # NCCL lets two processes share one GPU only where it takes them for processes of different hosts.
        "NCCL_HOSTID": f"host{process}",
        **(extra or {}),
    }


class Processes:
    """Processes that were started together; leaving the block ends those that are left."""

    def __init__(self, command: Sequence[str], count: int, extra: Mapping[str, str] | None = None) -> None:
        port = free_port()
        self.started = time.monotonic()
        self.running = [
            subprocess.Popen(
                [sys.executable, *command],
                env=environment(process, count, port, extra),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for process in range(count)
        ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()

    def wait(self, timeout: float) -> list[Ended]:
        """How each process ended; those that have not after `timeout` seconds are killed."""
        ended = []
        deadline = time.monotonic() + timeout
        for process in self.running:
            try:
                out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                ended.append(Ended(process.returncode, out, err, time.monotonic() - self.started))
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                ended.append(Ended(None, out, err, time.monotonic() - self.started))
        return ended
