"""Checkpoints over processes on one machine: `weft.checkpoint` beside torch's DCP, on a disk and in memory.

    python benchmarks/checkpoints.py                              4 Gloo processes, 403 MB, where temporary files go
    python benchmarks/checkpoints.py --folder /dev/shm --megabytes 4030
    python benchmarks/checkpoints.py --json out.json              the table as JSON, too

A state of float32 matrices is split by rows, and loaded by rows and by columns, into tensors that are there already. The
ways take turns; a repetition takes as long as its slowest process, and the median counts. The processors' seconds of all
processes together are shown too, which other work on the machine hardly changes. What a save has written is on
the disk when it returns, for both. Peak memory is that of a process, above what it had before, the first time included.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from socket import socket
from tempfile import mkdtemp

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.filterwarnings("ignore")

import weft
from weft import P

ROWS, COLUMNS = 4096, 1024  # 16.8 MB of float32
LIMITS = {
    ("save", "DCP"): 0.8,
    ("load by rows", "DCP"): 0.8,
    ("load by columns", "DCP"): 0.8,
    ("load by rows", "weft, unchecked"): 1 / 0.9,
    ("load by columns", "weft, unchecked"): 1 / 0.9,
    ("save, wait=False: the call", "copy"): 1.2,
    ("save, wait=False: and a step", "copy"): 1.2,
}
"""How long Weft may take, as a multiple of another way's time."""

Way = Callable[[], object]


class Times:
    """The seconds, the processors' seconds and the peak memory of each way of each case."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}
        self.cpu: dict[tuple[str, str], list[float]] = {}
        self.peaks: dict[tuple[str, str], float] = {}

    def take(self, case: str, ways: dict[str, Way], repetitions: int, between: Way = lambda: None) -> None:
        """Times the ways in turns, after one of each that does not count."""
        for turn in range(repetitions + 1):
            for name in ways if turn % 2 else reversed(ways):
                between()
                gc.collect()
                dist.barrier()
                before = resident()
                start, busy = time.perf_counter(), time.process_time()
                ways[name]()
                took, busy = time.perf_counter() - start, time.process_time() - busy
                seconds, cpu = slowest(took), of_all(busy, dist.ReduceOp.SUM)
                peak = slowest(resident(peak=True) - before)
                self.peaks[case, name] = max(peak, self.peaks.get((case, name), 0.0))
                if turn:
                    self.seconds.setdefault((case, name), []).append(seconds)
                    self.cpu.setdefault((case, name), []).append(cpu)

    def rows(self) -> list[dict[str, object]]:
        """The table."""
        found = {key: statistics.median(each) for key, each in self.seconds.items()}
        return [
            {
                "case": case,
                "way": way,
                "seconds": seconds,
                "cpu": statistics.median(self.cpu[case, way]),
                "peak_mb": self.peaks[case, way] / 1e6,
                "against": {
                    other: [found[case, "weft"] / found[case, other], LIMITS.get((case, other))]
                    for (one, other) in found
                    if way == "weft" and one == case and other != way
                },
            }
            for (case, way), seconds in found.items()
        ]


def resident(peak: bool = False) -> int:
    """The memory of this process in bytes, or its peak since this was asked last."""
    status = Path("/proc/self/status").read_text()
    if not peak:
        Path("/proc/self/clear_refs").write_text("5")
    name = "VmHWM:" if peak else "VmRSS:"
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(name))


def slowest(value: float) -> float:
    """The largest value of all processes."""
    return of_all(value, dist.ReduceOp.MAX)


def of_all(value: float, how: dist.ReduceOp.RedOpType) -> float:
    """The values of all processes, put together."""
    every = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(every, how)
    return float(every)


class Model(torch.nn.Module):
    """Matrices, on no device yet."""

    def __init__(self, count: int) -> None:
        super().__init__()
        with torch.device("meta"):
            for i in range(count):
                self.register_parameter(f"matrix{i}", torch.nn.Parameter(torch.empty(ROWS, COLUMNS)))


def sharded(count: int, mesh: weft.DeviceMesh, spec: P) -> torch.nn.Module:
    """The model with parameters of some value, laid out."""

    def fill(module: torch.nn.Module) -> None:
        for i, x in enumerate(module.parameters()):
            with torch.no_grad():
                x.fill_(i)

    return weft.nn.shard_module(Model(count), mesh, {"*": spec}, init=fill)


def distributed(count: int, mesh: DeviceMesh, dim: int) -> dict[str, DTensor]:
    """The same as DTensors."""
    shape = [ROWS, COLUMNS]
    shape[dim] //= mesh.size()
    return {
        f"matrix{i}": DTensor.from_local(torch.full(shape, float(i)), mesh, [Shard(dim)], run_check=False)
        for i in range(count)
    }


def measure(folder: Path, count: int, repetitions: int, background: bool) -> list[dict[str, object]]:
    """All cases, in one of the processes."""
    weft.distributed.init()
    times = Times()
    saves(times, folder, count, repetitions, background)
    for case, dim in (("load by rows", 0), ("load by columns", 1)):
        loads(times, folder, count, repetitions, case, dim)
    return times.rows()


def meshes() -> tuple[weft.DeviceMesh, DeviceMesh]:
    """All processes in a row, for both."""
    return weft.make_mesh({"x": dist.get_world_size()}), init_device_mesh("cpu", (dist.get_world_size(),))


def saves(times: Times, folder: Path, count: int, repetitions: int, in_background: bool) -> None:
    """Saves that wait for the disk, and what a save in the background takes of a step that changes all of the state."""
    ours, theirs = meshes()
    model, state = sharded(count, ours, P("x")), distributed(count, theirs, 0)
    handles: list[weft.checkpoint.Saving] = []

    def step() -> None:
        with torch.no_grad():
            for x in model.parameters():
                x.add_(0)

    def background() -> None:
        handles.append(weft.checkpoint.save(model, folder / "weft", wait=False))

    def copied() -> list[torch.Tensor]:
        return [shard.clone() for x in model.parameters() for shard in x.local_shards]

    def background_and_step() -> None:
        background()
        step()

    def copied_and_step() -> None:
        kept = copied()
        step()
        del kept

    def settle() -> None:
        while handles:
            handles.pop().wait()

    waiting = {
        "weft": lambda: weft.checkpoint.save(model, folder / "weft"),
        "DCP": lambda: dcp.save(state, checkpoint_id=str(folder / "dcp")),
    }
    times.take("save", waiting, repetitions)
    if not in_background:
        return
    times.take("save, wait=False: the call", {"weft": background, "copy": copied}, repetitions, settle)
    with_step = {"weft": background_and_step, "copy": copied_and_step}
    times.take("save, wait=False: and a step", with_step, repetitions, settle)
    settle()


def loads(times: Times, folder: Path, count: int, repetitions: int, case: str, dim: int) -> None:
    """Loads into tensors that are there, split by another dim or by the same."""
    ours, theirs = meshes()
    target, filled = sharded(count, ours, P("x") if not dim else P(None, "x")), distributed(count, theirs, dim)
    for x in (*target.parameters(), *filled.values()):
        with torch.no_grad():
            x.zero_()
    ways = {
        "weft": lambda: weft.checkpoint.load(folder / "weft", target),
        "weft, unchecked": lambda: weft.checkpoint.load(folder / "weft", target, verify=False),
        "DCP": lambda: dcp.load(filled, checkpoint_id=str(folder / "dcp")),
    }
    times.take(case, ways, repetitions)
    assert all(bool((x.local_shards[0] == i).all()) for i, x in enumerate(target.parameters()))
    assert all(bool((x.to_local() == i).all()) for i, x in enumerate(filled.values()))


def launch(processes: int, arguments: list[str]) -> None:
    """Starts the processes, and waits for all."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments],
            env={
                **os.environ,
                "RANK": str(process),
                "LOCAL_RANK": str(process),
                "WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for process in range(processes)
    ]
    statuses = [process.wait() for process in started]
    if any(statuses):
        sys.exit(f"a process failed: {statuses}")


def show(rows: list[dict[str, object]], megabytes: float, processes: int, folder: Path) -> None:
    """Prints the table."""
    print(f"{processes} processes, {megabytes:.0f} MB, {folder}")
    for row in rows:
        limits = "   ".join(
            f"{ratio:.2f} x {other}" + (f" (limit {limit:.2f}{'' if ratio <= limit else ', MISSED'})" if limit else "")
            for other, (ratio, limit) in row["against"].items()  # type: ignore[attr-defined]
        )
        print(
            f"{row['case']:<28} {row['way']:<16} {row['seconds']:8.3f} s   cpu {row['cpu']:6.3f} s   peak {row['peak_mb']:7.1f} MB   {limits}"
        )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=403)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument(
        "--no-background", action="store_true", help="leave out wait=False, which needs room for copies"
    )
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    count = max(1, round(arguments.megabytes * 1e6 / (ROWS * COLUMNS * 4)))
    if "RANK" not in os.environ:
        folder = Path(mkdtemp(dir=arguments.folder))
        try:
            out = folder / "table.json"
            launch(arguments.processes, [*sys.argv[1:], "--folder", str(folder), "--json", str(out)])
            rows = json.loads(out.read_text())
        finally:
            shutil.rmtree(folder)
        show(rows, count * ROWS * COLUMNS * 4 / 1e6, arguments.processes, folder.parent)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1))
        return
    rows = measure(arguments.folder, count, arguments.repetitions, not arguments.no_background)
    if dist.get_rank() == 0:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
