"""A compiled training step over processes on one machine, beside the same step uncompiled and DTensor's compiled one.

    python benchmarks/compiled.py                        tensor parallel on 2 Gloo processes, data x tensor parallel on 4
    python benchmarks/compiled.py --json out.json        the table as JSON, too

Forward and backward of a GPT-2-like model in float32, until gradients lie as their parameters do. The ways take turns; a step takes as long as its slowest process,
and the median counts. Losses of all ways are compared before anything is timed. Processes of other programs, and more
processes than processors, make the figures unsteady: the spread stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from socket import socket

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional

import weft
from examples.models import gpt2
from weft import P

VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS, BATCH = 1024, 64, 256, 8, 2, 8
Step = Callable[[], torch.Tensor]


def model() -> nn.Module:
    """The same in every process."""
    torch.manual_seed(0)
    return gpt2.GPT2(VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS)


def tokens() -> torch.Tensor:
    """A batch."""
    torch.manual_seed(1)
    return torch.randint(VOCABULARY, (BATCH, LENGTH))


def loss_of(logits: torch.Tensor) -> torch.Tensor:
    """Something that all logits have part in."""
    return logits.square().mean()


def weft_step(axes: dict[str, int], compiled: bool) -> Step:
    """A step of a sharded model."""
    mesh = weft.make_mesh(axes)
    sharded = weft.nn.shard_module(model(), mesh, gpt2.LAYOUTS["tp"])
    batch = weft.shard(tokens(), mesh, P("dp") if "dp" in axes else P())

    def run(batch: torch.Tensor) -> torch.Tensor:
        return loss_of(sharded(batch))

    forward = torch.compile(run, fullgraph=True) if compiled else run

    def step() -> torch.Tensor:
        loss = forward(batch)
        loss.backward()
        sharded.zero_grad()
        return loss.detach().full_tensor()

    return step


class LocalAttention(gpt2.Attention):
    """The same on the heads of each process: DTensor has no attention on CPUs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position looks at those before it."""
        batch, length, dim = x.shape
        heads = [
            projection(x).view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        ]
        q, k, v = (each.to_local() for each in heads)
        local = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = DTensor.from_local(local, heads[0].device_mesh, heads[0].placements)
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


def dtensor_step(axes: dict[str, int]) -> Step:
    """The same layouts, as DTensor has them."""
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    sharded = model()
    for block in sharded.blocks:
        block.attention.__class__ = LocalAttention
    laid: dict[nn.Parameter, nn.Parameter] = {}
    for path, parameter in list(sharded.named_parameters(remove_duplicate=False)):
        if parameter not in laid:
            spec = next((spec for pattern, spec in gpt2.LAYOUTS["tp"].items() if fnmatch(path, pattern)), P())
            placements = [Shard(spec.index(axis)) if axis in spec else Replicate() for axis in axes]
            laid[parameter] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements))
        owner, _, name = path.rpartition(".")
        setattr(sharded.get_submodule(owner), name, laid[parameter])
    batch = distribute_tensor(tokens(), mesh, [Shard(0) if axis == "dp" else Replicate() for axis in axes])

    def run(batch: torch.Tensor) -> torch.Tensor:
        return loss_of(sharded(batch))

    forward = torch.compile(run, fullgraph=True)

    def step() -> torch.Tensor:
        loss = forward(batch)
        loss.backward()
        for parameter in laid.values():
            # DTensor leaves sums of gradients pending. An optimizer needs them where the parameters lie, where Weft's arrive.
            parameter.grad.redistribute(placements=parameter.placements)
        sharded.zero_grad()
        return loss.detach().full_tensor()

    return step


CASES = {"tensor parallel": {"tp": 2}, "data x tensor parallel": {"dp": 2, "tp": 2}}
WAYS: dict[str, Callable[[dict[str, int]], Step]] = {
    "Weft": lambda axes: weft_step(axes, compiled=False),
    "Weft compiled": lambda axes: weft_step(axes, compiled=True),
    "DTensor compiled": dtensor_step,
}


def measure(case: str, rounds: int) -> dict[str, dict[str, float]]:
    """What each process does: milliseconds of a step, by way."""
    steps = {way: make(CASES[case]) for way, make in WAYS.items()}
    losses = {way: float(step()) for way, step in steps.items()}
    first = losses["Weft"]
    assert all(abs(loss - first) < 1e-4 * abs(first) for loss in losses.values()), losses
    times: dict[str, list[float]] = {way: [] for way in steps}
    for number in range(rounds + 2):
        for way, step in steps.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if number >= 2:
                times[way].append(1e3 * float(taken))
    return {
        way: {"median": statistics.median(each), "least": min(each), "most": max(each)} for way, each in times.items()
    }


def work(case: str, rounds: int) -> None:
    """Measures, and lets the first process say what was found."""
    weft.distributed.init(backend="gloo", timeout=300)
    found = measure(case, rounds)
    if weft.on_main():
        sys.stdout.write(json.dumps(found) + "\n")
    weft.distributed.shutdown()


def launched(case: str, rounds: int) -> dict[str, dict[str, float]]:
    """What the processes of a case find."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = 1
    for size in CASES[case].values():
        count *= size
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # What is kept of compiled code names process groups of the program that compiled it, which DTensor does not find again.
    environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = str(count)
    command = [sys.executable, __file__, "--case", case, "--rounds", str(rounds)]
    started = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(i), "LOCAL_RANK": str(i)}, stdout=subprocess.PIPE, text=True
        )
        for i in range(count)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{case}: a process failed")
    found: dict[str, dict[str, float]] = json.loads(said[0].splitlines()[-1])
    return found


def main() -> None:
    """Runs all cases, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if "RANK" in os.environ:
        work(given.case, given.rounds)
        return
    found: dict[str, dict[str, dict[str, float]]] = {}
    print("| case | way | a step | spread | to Weft compiled |\n|---|---|---|---|---|", flush=True)
    for case in [given.case] if given.case else CASES:
        ways = found[case] = launched(case, given.rounds)
        base = ways["Weft compiled"]["median"]
        for way, each in ways.items():
            spread = f"{each['least']:.1f} to {each['most']:.1f}"
            print(f"| {case} | {way} | {each['median']:.1f} ms | {spread} | {each['median'] / base:.2f} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"torch": str(torch.__version__), "cases": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
