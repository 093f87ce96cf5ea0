"""Checkpoints over processes on one machine: `weft.checkpoint` beside torch's DCP, on a disk and in memory.

    python benchmarks/checkpoints.py                              4 Gloo processes, 403 MB, where temporary files go
    python benchmarks/checkpoints.py --folder /dev/shm --megabytes 4030 --fresh
    python benchmarks/checkpoints.py --json out.json              the table as JSON, too
    python benchmarks/checkpoints.py --megabytes 4030 --only "load by rows" --without-dcp

`--only` names cases, and `--without-dcp` leaves torch's way out: one case of 4 GB takes a minute or two then.

A state of float32 matrices is split by rows, and loaded by rows and by columns, into tensors that are there already; Weft
and DCP save and fill the same memory. The ways take turns; a repetition takes as long as its slowest process, and the
median counts. The processors' seconds of all processes together are shown too, which other work on the machine hardly
changes, and those of the threads that called ("own"), without those that work for them, and the page faults of the calling
thread, of the process that has most. What a save has written is on the
disk when it returns, for both. Loads find the files in the system's memory, except where a case says "cold": their pages are
dropped first, as after a restart. Peak memory is that of a process, above what it had before, the first time included.

A save with `wait=False` is compared with a copy of the shards to memory that is there: the call by itself, and with one step
and with five that change all of the state while it is written. What the steps take by themselves, in the same turn, is taken
away: what is left is what the save has cost the program, its call, the copies that steps make of what they overwrite, and the
cores that the thread has taken that writes.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
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
from weft.engine.views.copy_views import current

ROWS, COLUMNS = 4096, 1024  # 16.8 MB of float32
LIMITS = {
    ("save", "DCP"): 0.8,
    ("load by rows", "DCP"): 0.8,
    ("load by columns", "DCP"): 0.8,
    ("load by rows", "weft, unchecked"): 1 / 0.9,
    ("load by columns", "weft, unchecked"): 1 / 0.9,
    ("load by rows, cold", "weft, unchecked"): 1 / 0.9,
    ("load by columns, cold", "weft, unchecked"): 1 / 0.9,
    ("save, wait=False: the call", "copy"): 1.2,
    ("save, wait=False: and a step", "copy"): 1.2,
    ("save, wait=False: and 5 steps", "copy"): 1.2,
}
"""How long Weft may take, as a multiple of another way's time."""
STEPS = {"the call": 0, "and a step": 1, "and 5 steps": 5}
"""How many steps follow the call of a save in the background."""
BACKGROUND = {f"save, wait=False: {what}": number for what, number in STEPS.items()}
LOADS = {f"load by {what}{how}": dim for dim, what in enumerate(("rows", "columns")) for how in ("", ", cold")}
"""By which dim the tensors are split that are loaded into."""
CASES = ("save", *BACKGROUND, *LOADS)
ALONE = "steps alone"
"""What a case has besides, which is taken away from Weft's way, turn by turn, before it is compared."""

Way = Callable[[], object]


class Times:
    """The seconds, the processors' seconds, the page faults and the peak memory of each way of each case."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = {}
        self.cpu: dict[tuple[str, str], list[float]] = {}
        self.own: dict[tuple[str, str], list[float]] = {}
        self.faults: dict[tuple[str, str], list[float]] = {}
        self.peaks: dict[tuple[str, str], float] = {}

    def take(self, case: str, ways: dict[str, Way], repetitions: int, between: Way = lambda: None) -> None:
        """Times the ways in turns, after one of each that does not count."""
        gc.collect()
        gc.freeze()  # so that collecting between the turns is quick
        for turn in range(repetitions + 1):
            for name in ways if turn % 2 else reversed(ways):
                between()
                gc.collect()
                dist.barrier()
                before, faults = resident(), page_faults()
                start, busy, own = time.perf_counter(), time.process_time(), time.thread_time()
                ways[name]()
                took, busy, own = time.perf_counter() - start, time.process_time() - busy, time.thread_time() - own
                faults = slowest(page_faults() - faults)
                seconds, cpu, own = slowest(took), of_all(busy, dist.ReduceOp.SUM), of_all(own, dist.ReduceOp.SUM)
                peak = slowest(resident(peak=True) - before)
                self.peaks[case, name] = max(peak, self.peaks.get((case, name), 0.0))
                if turn:
                    self.seconds.setdefault((case, name), []).append(seconds)
                    self.cpu.setdefault((case, name), []).append(cpu)
                    self.own.setdefault((case, name), []).append(own)
                    self.faults.setdefault((case, name), []).append(faults)

    def cost(self, case: str) -> float:
        """The seconds of Weft's way, without those of the steps alone where a case has them."""
        ours = self.seconds[case, "weft"]
        alone = self.seconds.get((case, ALONE), [0.0] * len(ours))
        return statistics.median(one - other for one, other in zip(ours, alone, strict=True))

    def rows(self) -> list[dict[str, object]]:
        """The table."""
        found = {key: statistics.median(each) for key, each in self.seconds.items()}
        return [
            {
                "case": case,
                "way": way,
                "seconds": seconds,
                "cpu": statistics.median(self.cpu[case, way]),
                "own": statistics.median(self.own[case, way]),
                "faults": statistics.mean(self.faults[case, way]),
                "peak_mb": self.peaks[case, way] / 1e6,
                "against": {
                    other: [self.cost(case) / found[case, other], LIMITS.get((case, other))]
                    for (one, other) in found
                    if way == "weft" and one == case and other not in (way, ALONE)
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


def page_faults() -> int:
    """How many pages this thread has made the system bring."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


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


def distributed(model: torch.nn.Module, mesh: DeviceMesh, dim: int) -> dict[str, DTensor]:
    """The same as DTensors, in the same memory."""
    return {
        name: DTensor.from_local(current(x)[0].detach(), mesh, [Shard(dim)], run_check=False)
        for name, x in model.named_parameters()
    }


def measure(folder: Path, count: int, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """All cases, in one of the processes."""
    weft.distributed.init()
    times = Times()
    saves(times, folder, count, arguments)
    for dim, what in enumerate(("rows", "columns")):
        cases = [case for case in arguments.only if LOADS.get(case) == dim]
        if cases:
            loads(times, folder, count, arguments, f"load by {what}", dim, cases)
    return times.rows()


def meshes() -> tuple[weft.DeviceMesh, DeviceMesh]:
    """All processes in a row, for both."""
    return weft.make_mesh({"x": dist.get_world_size()}), init_device_mesh("cpu", (dist.get_world_size(),))


def saves(times: Times, folder: Path, count: int, arguments: argparse.Namespace) -> None:
    """Saves that wait for the disk, and what a save in the background takes of steps that change all of the state."""
    ours, theirs = meshes()
    model = sharded(count, ours, P("x"))
    state = distributed(model, theirs, 0)

    def clear() -> None:
        dist.barrier()
        if arguments.fresh and dist.get_rank() == 0:
            for name in ("weft", "dcp"):
                shutil.rmtree(folder / name, ignore_errors=True)

    ways = {
        "weft": lambda: weft.checkpoint.save(model, folder / "weft"),
        "DCP": lambda: dcp.save(state, checkpoint_id=str(folder / "dcp")),
    }
    if arguments.without_dcp:
        del ways["DCP"]
    if "save" in arguments.only:
        times.take("save", ways, arguments.repetitions, clear)
    background_saves(times, folder / "weft", model, arguments)
    if any(case in LOADS for case in arguments.only):
        for save in ways.values():
            save()


def background_saves(times: Times, path: Path, model: torch.nn.Module, arguments: argparse.Namespace) -> None:
    """The call, and what the steps after it take longer."""
    cases = [case for case in BACKGROUND if case in arguments.only]
    if not cases:
        return
    handles: list[weft.checkpoint.Saving] = []
    room = [torch.zeros_like(x.local_shards[0]) for x in model.parameters()]
    square = torch.full((600, 600), 1e-3)

    def steps(number: int) -> None:
        with torch.no_grad():
            for _ in range(number):
                result = square
                for _ in range(4):
                    result = result @ square
                for x in model.parameters():
                    x.add_(0)

    def background(number: int = 0) -> None:
        handles.append(weft.checkpoint.save(model, path, wait=False))
        steps(number)

    def copied() -> None:
        for x, into in zip(model.parameters(), room, strict=True):
            into.copy_(x.local_shards[0])

    def settle() -> None:
        while handles:
            handles.pop().wait()

    for case in cases:
        number = BACKGROUND[case]
        ways = {"weft": lambda n=number: background(n), "copy": copied}
        if number:
            ways[ALONE] = lambda n=number: steps(n)
        times.take(case, ways, arguments.repetitions, settle)
    settle()


def loads(
    times: Times, folder: Path, count: int, arguments: argparse.Namespace, case: str, dim: int, cases: list[str]
) -> None:
    """Loads into tensors that are there, split by another dim or by the same."""
    ours, theirs = meshes()
    target = sharded(count, ours, P("x") if not dim else P(None, "x"))
    filled = distributed(target, theirs, dim)

    def clear() -> None:
        with torch.no_grad():
            for x in filled.values():
                x.to_local().zero_()

    def check(way: Way) -> None:
        clear()
        assert not any(bool(x.local_shards[0].any()) for x in target.parameters())
        way()
        assert all(bool((x.local_shards[0] == i).all()) for i, x in enumerate(target.parameters()))

    def drop() -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            for file in (file for part in folder.iterdir() if part.is_dir() for file in part.iterdir()):
                with file.open("rb") as opened:
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    ways = {
        "weft": lambda: weft.checkpoint.load(folder / "weft", target),
        "weft, unchecked": lambda: weft.checkpoint.load(folder / "weft", target, verify=False),
        "DCP": lambda: dcp.load(filled, checkpoint_id=str(folder / "dcp")),
    }
    if arguments.without_dcp:
        del ways["DCP"]
    for way in ways.values():
        check(way)
    if case in cases:
        times.take(case, ways, arguments.repetitions)
    if f"{case}, cold" in cases and not in_memory(folder):
        times.take(f"{case}, cold", ways, arguments.repetitions, drop)


def in_memory(folder: Path) -> bool:
    """Whether a folder lies in memory, so that its files are nowhere else."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    longest = max((at for _, at, *_ in mounts if folder.resolve().is_relative_to(at)), key=len)
    return any(at == longest and kind == "tmpfs" for _, at, kind, *_ in mounts)


def launch(processes: int, arguments: list[str], program: str = __file__) -> None:
    """Starts the processes, and waits for all."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, program, *arguments],
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
    while None in (statuses := [process.poll() for process in started]) and not any(statuses):
        time.sleep(0.05)
    if any(statuses):  # the others would wait for it
        for process in started:
            process.kill()
        sys.exit(f"a process failed: {statuses} (-9: killed, as where memory was short)")


def show(rows: list[dict[str, object]], megabytes: float, processes: int, folder: Path) -> None:
    """Prints the table."""
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{processes} processes, {megabytes:.0f} MB, {folder}, {os.cpu_count()} cores, load averages {load}")
    for row in rows:
        limits = "   ".join(
            f"{ratio:.2f} x {other}" + (f" (limit {limit:.2f}{'' if ratio <= limit else ', MISSED'})" if limit else "")
            for other, (ratio, limit) in row["against"].items()  # type: ignore[attr-defined]
        )
        print(
            f"{row['case']:<30} {row['way']:<16} {row['seconds']:8.3f} s   cpu {row['cpu']:6.3f} s (own {row['own']:6.3f})   faults {row['faults']:6.0f}   peak {row['peak_mb']:7.1f} MB   {limits}"
        )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--megabytes", type=float, default=403)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="measure these cases")
    parser.add_argument("--without-dcp", action="store_true", help="leave out torch's way")
    parser.add_argument(
        "--fresh", action="store_true", help="remove what was saved before each save, to need less room"
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
    rows = measure(arguments.folder, count, arguments)
    if dist.get_rank() == 0:
        arguments.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
