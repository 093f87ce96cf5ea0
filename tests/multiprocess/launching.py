"""Starting several processes of one program on this machine, as a launcher does, and ending them all."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

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


class Nursery:
    """The process that forks others, which are spared the imports."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: dict[str, object]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, "the nursery has ended"
        found = json.loads(answer)
        assert found is None or isinstance(found, int)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


_making = threading.Lock()
_made = cache(Nursery)


def nursery() -> Nursery:
    with _making:
        return _made()


class Child:
    """A process that was forked, or started afresh; its words go to files."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path, name: str, *, fresh: bool) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._status: int | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        if fresh or torch.cuda.is_available():  # what a driver has set up does not survive a fork
            with self._out.open("wb") as out, self._err.open("wb") as err:
                command = [sys.executable, *command]
                self._popen = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            self.pid = self._popen.pid
        else:
            files = {"out": str(self._out), "err": str(self._err)}
            pid = nursery().ask({"start": list(command), "environment": dict(env), **files})
            assert pid is not None
            self.pid = pid

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._popen.poll() if self._popen else nursery().ask({"poll": self.pid})
        return self._status

    def wait(self, timeout: float) -> int | None:
        """Its status; None if it has not ended after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._status

    def send_signal(self, which: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, which)

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace") if self._err.exists() else ""


class Processes:
    """Processes that were started together; leaving the block ends those that are left."""

    def __init__(
        self, command: Sequence[str], count: int, extra: Mapping[str, str] | None = None, *, fresh: bool = False
    ) -> None:
        port = free_port()
        self._folder = tempfile.TemporaryDirectory()
        self.started = time.monotonic()
        self.running = [
            Child(command, environment(i, count, port, extra), Path(self._folder.name), str(i), fresh=fresh)
            for i in range(count)
        ]

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            process.send_signal(signal.SIGKILL)
        for process in self.running:
            process.wait(10)
        self._folder.cleanup()

    def wait(self, timeout: float, but: Sequence[int] = ()) -> list[Ended]:
        """How each process ended; those that have not after `timeout` seconds are killed, as are `but` these at the end."""
        deadline = time.monotonic() + timeout
        ended: dict[int, Ended] = {}
        for index in sorted(range(len(self.running)), key=lambda index: index in but):
            process = self.running[index]
            status = process.wait(0 if index in but else deadline - time.monotonic())
            if status is None:
                process.send_signal(signal.SIGKILL)
                process.wait(10)
            ended[index] = Ended(status, process.out, process.err, time.monotonic() - self.started)
        return [ended[index] for index in range(len(self.running))]
