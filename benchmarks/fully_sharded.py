"""`weft.nn.fully_shard` beside torch's FSDP2 over processes on one machine: bytes, peak memory, time of a step.

    python benchmarks/fully_sharded.py                    4 Gloo processes
    python benchmarks/fully_sharded.py --json out.json    the table as JSON, too

Each with its defaults and with the other's: Weft lets 256 MiB of parameters stay whole between forward and backward, which is
all there is of these models, FSDP2 none. The ways take turns; a step takes as long as its slowest process, and the median
counts. Bytes of FSDP2 are those of its collectives, counted where torch makes them; Weft's are its log's. Peak memory is what
a process has in memory at most in five steps, above what it has with the model built. It is measured for each way and model
in processes of their own, which have trained a tiny model before: memory that another model has left is not counted as free,
nor code that is loaded. The last row says how much of the gathering is hidden where each lasts as long as its bytes would
take over a link of that rate.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from socket import socket

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from examples.models import gpt2, mlp
from weft import P
from weft.nn import gathering

PROCESSES = 4
RATE = 200e6
"""Bytes a second of the link that is pretended."""
CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], torch.Tensor], str]] = {
    "MLP, large batch": (lambda: mlp.MLP(512, 2048, 4, 64), lambda: torch.randn(256, 512), "layers"),
    "MLP, small batch": (lambda: mlp.MLP(512, 2048, 4, 64), lambda: torch.randn(8, 512), "layers"),
    "GPT-2-like": (lambda: gpt2.GPT2(1024, 64, 256, 8, 4), lambda: torch.randint(1024, (8, 64)), "blocks"),
}

TINY = {"tiny": (lambda: mlp.MLP(8, 16, 2, 4), lambda: torch.randn(8, 8), "layers")}
"""A model that shows what there is without one."""
HIDDEN = {"MLP, huge batch": (lambda: mlp.MLP(512, 2048, 8, 64), lambda: torch.randn(2048, 512), "layers")}
"""A model that computes for long enough to hide something behind it."""


class Counted(TorchDispatchMode):
    """Counts the bytes that a process receives in FSDP2's collectives, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.calls = 0, {"all_gather": 0, "reduce_scatter": 0}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        name = func._schema.name
        part = {"c10d::_allgather_base_": 1, "c10d::_reduce_scatter_base_": 0}.get(name)
        if part is not None:
            given = args[part]
            assert isinstance(given, torch.Tensor)
            self.received += given.nbytes * (PROCESSES - 1)
            self.calls["all_gather" if part else "reduce_scatter"] += 1
        return func(*args, **(kwargs or {}))


def resident() -> int:
    """Bytes of this process that are in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) << 10


def peak() -> int:
    """The most bytes that this process has had in memory since `forget_peak`."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) << 10


def forget_peak() -> None:
    """Lets the peak begin again."""
    Path("/proc/self/clear_refs").write_text("5")


def loss_of(found: torch.Tensor) -> torch.Tensor:
    """Something to train for."""
    return found.float().square().mean()


def sharded(case: str, **options: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """Weft's model and batch."""
    make, data, blocks = {**CASES, **TINY, **HIDDEN}[case]
    mesh = weft.make_mesh({"dp": dist.get_world_size()})
    torch.manual_seed(0)
    model = weft.nn.fully_shard(make(), mesh, "dp", blocks=f"*.{blocks}.*", **options)
    torch.manual_seed(1)
    return model, weft.shard(data(), mesh, P("dp"))


def torchs(case: str, frees: bool = True) -> tuple[torch.nn.Module, torch.Tensor]:
    """FSDP2's model and this process's part of the batch."""
    make, data, blocks = {**CASES, **TINY, **HIDDEN}[case]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = make()
    for block in getattr(model, blocks):
        fully_shard(block, mesh=mesh, reshard_after_forward=frees)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1)
    return model, data().chunk(dist.get_world_size())[dist.get_rank()]


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """One step of training."""
    optimizer.zero_grad()
    loss_of(model(x)).backward()
    optimizer.step()


WAYS: dict[str, Callable[[str], tuple[torch.nn.Module, torch.Tensor]]] = {
    "weft": sharded,
    "FSDP2": torchs,
    "weft, freed": partial(sharded, keep_bytes=0),
    "FSDP2, kept": partial(torchs, frees=False),
}
Way = tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]


def ready(name: str, case: str) -> Way:
    """A model, its optimizer and a batch."""
    model, x = WAYS[name](case)
    return model, torch.optim.SGD(model.parameters(), lr=0.01), x


def measured(case: str, turns: int) -> dict[str, dict[str, object]]:
    """All ways, in turns."""
    ways = {name: ready(name, case) for name in WAYS}
    for way in (*ways.values(), *ways.values()):
        step(*way)
    moved = {name: moved_by(name, way) for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in random.Random(turn).sample(sorted(ways), len(ways)):
            dist.barrier()
            start = time.perf_counter()
            step(*ways[name])
            spent = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            seconds[name].append(float(spent))
    return {name: {**moved[name], "ms": round(statistics.median(each) * 1e3, 1)} for name, each in seconds.items()}


def moved_by(name: str, way: Way) -> dict[str, object]:
    """What a process receives in a step, and in how many collectives."""
    if name.startswith("weft"):
        with weft.comm_log() as log:
            step(*way)
        return {"received": log.bytes_received, "calls": log.counts()}
    with Counted() as counted:
        step(*way)
    return {"received": counted.received, "calls": counted.calls}


def peak_of(name: str, case: str) -> float:
    """The most that a process has in memory in five steps, above what it has with the model built, in MiB."""
    tiny = ready(name, "tiny")
    for _ in range(3):
        step(*tiny)
    way = ready(name, case)
    gc.collect()
    forget_peak()
    before = resident()
    for _ in range(5):
        step(*way)
    most = torch.tensor(float(peak() - before))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return round(float(most) / 2**20, 1)


def hidden() -> dict[str, float]:
    """How much of the gathering is hidden where each lasts as long as its bytes take over a link of some rate."""
    original = gathering.pass_on

    def slow(plan: gathering.StatePlan, *args: object) -> object:
        start = time.perf_counter()
        found = original(plan, *args)  # type: ignore[arg-type]
        time.sleep(max(0.0, plan.bytes_received.max / RATE - (time.perf_counter() - start)))
        return found

    way = ready("weft, freed", "MLP, huge batch")
    step(*way)
    gathering.pass_on = slow  # type: ignore[assignment]
    with weft.comm_log() as log:
        start = time.perf_counter()
        step(*way)
        seconds = time.perf_counter() - start
    gathering.pass_on = original
    gathers = [each for each in log.overlaps if log.records[each.count - 1].kind == "all_gather"]
    total = sum(each.ended - each.started for each in gathers)
    return {
        "hidden": round(sum(each.hidden for each in gathers) / total, 3),
        "gathering_ms": round(total * 1e3, 1),
        "step_ms": round(seconds * 1e3, 1),
    }


def work(part: str, turns: int, case: str | None) -> None:
    """What each process does."""
    weft.distributed.init()
    if part == "steps":
        found: object = {each: measured(each, turns) for each in ([case] if case else CASES)}
    else:
        found = hidden() if case is None else {"peak_mib": peak_of(part, case)}
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    weft.distributed.shutdown()


def launched(part: str, turns: int = 0, *more: str) -> dict[str, dict[str, object]]:
    """What the first of some processes says."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(PROCESSES),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--part", part, "--turns", str(turns), *more]
    running = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **shared, "RANK": str(i), "LOCAL_RANK": str(i)},
        )
        for i in range(PROCESSES)
    ]
    said = [each.communicate()[0] for each in running]
    if any(each.returncode for each in running):
        raise SystemExit(1)
    return json.loads(said[0].splitlines()[-1])


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--part", choices=["steps", "hidden", *WAYS])
    parser.add_argument("--case", choices=list(CASES), help="only this model")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.part is not None:
        work(options.part, options.turns, options.case)
        return
    rows = launched("steps", options.turns, *(["--case", options.case] if options.case else []))
    for name in WAYS:
        for case in rows:
            rows[case][name] = {**rows[case][name], **launched(name, 0, "--case", case)}
    rows[f"gathering over {RATE / 1e6:g} MB/s"] = launched("hidden")
    for case, row in rows.items():
        print(case, json.dumps(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
