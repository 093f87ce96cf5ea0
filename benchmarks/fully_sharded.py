"""`weft.nn.fully_shard` beside torch's FSDP2 over processes on one machine: bytes, peak memory, time of a step.

    python benchmarks/fully_sharded.py                    4 Gloo processes
    python benchmarks/fully_sharded.py --json out.json    the table as JSON, too
    python benchmarks/fully_sharded.py --rate 50          and as if the network carried 50 MB a second

The ways take turns; a step takes as long as its slowest process, and the median counts. Bytes of FSDP2 are those of its
collectives, counted where torch makes them; Weft's are its log's. Peak memory is that of the tensors of one process, above
what it held before the step, as torch's own counters of its allocator do not know the host: what is alive is added up
whenever a block has run. `--rate` lets every exchange of Weft last as long as its bytes would take, and says how much of that was
hidden behind compute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from examples.models import gpt2, mlp
from weft import P
from weft.runtime.processes import passing

CASES: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[int], torch.Tensor], str]] = {
    "MLP, large batch": (lambda: mlp.MLP(512, 2048, 4, 64), lambda seed: torch.randn(256, 512), "layers"),
    "MLP, small batch": (lambda: mlp.MLP(512, 2048, 4, 64), lambda seed: torch.randn(8, 512), "layers"),
    "GPT-2-like": (lambda: gpt2.GPT2(1024, 64, 256, 8, 4), lambda seed: torch.randint(1024, (8, 64)), "blocks"),
}


class Counted(TorchDispatchMode):
    """Counts the bytes that a process receives in FSDP2's collectives, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.received, self.calls = 0, {"all_gather": 0, "reduce_scatter": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        processes = dist.get_world_size()
        if name == "c10d::_allgather_base_":
            self.received += args[1].nbytes * (processes - 1)
            self.calls["all_gather"] += 1
        elif name == "c10d::_reduce_scatter_base_":
            self.received += args[0].nbytes * (processes - 1)
            self.calls["reduce_scatter"] += 1
        elif name in (
            "c10d::allreduce_",
            "c10d::reduce_scatter_tensor_coalesced_",
            "c10d::allgather_into_tensor_coalesced_",
        ):
            self.calls[name] = self.calls.get(name, 0) + 1
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


def sharded(case: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """Weft's model and batch."""
    make, data, blocks = CASES[case]
    mesh = weft.make_mesh({"dp": dist.get_world_size()})
    torch.manual_seed(0)
    model = weft.nn.fully_shard(make(), mesh, "dp", blocks=f"*.{blocks}.*")
    torch.manual_seed(1)
    return model, weft.shard(data(0), mesh, P("dp"))


def torchs(case: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """FSDP2's model and this process's part of the batch."""
    make, data, blocks = CASES[case]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = make()
    for block in getattr(model, blocks):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1)
    return model, data(0).chunk(dist.get_world_size())[dist.get_rank()]


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """One step of training."""
    optimizer.zero_grad()
    loss_of(model(x)).backward()
    optimizer.step()


def measured(case: str, turns: int) -> dict[str, object]:
    """Both, in turns."""
    ways = {}
    for name, make in (("weft", sharded), ("FSDP2", torchs)):
        model, x = make(case)
        ways[name] = (model, torch.optim.SGD(model.parameters(), lr=0.01), x)
    row: dict[str, object] = {"case": case}
    for way in ways.values():
        step(*way)
        step(*way)
    with weft.comm_log() as log:
        step(*ways["weft"])
    with Counted() as counted:
        step(*ways["FSDP2"])
    row["weft"] = {"received": log.bytes_received, "calls": log.counts()}
    row["FSDP2"] = {"received": counted.received, "calls": counted.calls}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in random.Random(turn).sample(sorted(ways), 2):
            dist.barrier()
            start = time.perf_counter()
            step(*ways[name])
            spent = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(spent, dist.ReduceOp.MAX)
            seconds[name].append(float(spent))
    for name, each in seconds.items():
        found = row[name]
        assert isinstance(found, dict)
        found["ms"] = round(statistics.median(each) * 1e3, 1)
        forget_peak()
        before = resident()
        step(*ways[name])
        found["peak_mib"] = round((peak() - before) / 2**20, 1)
    return row


def hidden(rate: float) -> dict[str, object]:
    """How much of gathering and scattering is hidden where each exchange lasts as long as its bytes take at a rate."""
    original = passing.pass_on

    def slow(plan: Any, *args: Any) -> Any:
        start = time.perf_counter()
        found = original(plan, *args)
        time.sleep(max(0.0, plan.bytes_received.max / rate - (time.perf_counter() - start)))
        return found

    import weft.nn.gathering as gathering

    gathering.pass_on = slow
    model, x = sharded("MLP, large batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step(model, optimizer, x)
    with weft.comm_log() as log:
        start = time.perf_counter()
        step(model, optimizer, x)
        seconds = time.perf_counter() - start
    gathering.pass_on = original
    total = sum(each.ended - each.started for each in log.overlaps)
    return {
        "case": f"at {rate / 1e6:g} MB/s",
        "hidden": round(log.hidden, 3),
        "moving_ms": round(total * 1e3, 1),
        "step_ms": round(seconds * 1e3, 1),
    }


def work(turns: int, rate: float | None, written: Path | None) -> None:
    """What each process does."""
    weft.distributed.init()
    rows = [measured(case, turns) for case in CASES]
    if rate is not None:
        rows.append(hidden(rate * 1e6))
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row), flush=True)
        if written is not None:
            written.write_text(json.dumps(rows, indent=1))
    weft.distributed.shutdown()


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options.turns, options.rate, options.json)
        return
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(4)
    ]
    codes = [each.wait() for each in running]
    if any(codes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
