"""What movements of a training step take in 4 Gloo processes, beside what a dry run says of them.

    python benchmarks/dryrun_exposed.py                        about a minute
    python benchmarks/dryrun_exposed.py --write docs/dryrun.md

First the links and processors are measured, as `weft bench --links` does it, and what each process computes while all do;
then steps of two models in several layouts are timed in turns. A movement is exposed for as long as processes wait for it after the
last of them has asked for it: whoever comes earlier waits for the others' computing, not for what moves.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from socket import socket
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from pages import write_between
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import weft
from weft import P
from weft.inspect.links import measured_links
from weft.watch.comm_log import CommLog, CommRecord

PROCESSES, WITHIN = 4, 0.25
WIDTH, HEADS, LENGTH, BATCH = 512, 8, 128, 8
Program = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]


class Perceptron(nn.Module):
    """Pairs of products."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.gelu(up(x)))
        return x.square().mean()


class Attention(nn.Module):
    """Attention and a pair of products, twice."""

    def __init__(self) -> None:
        super().__init__()
        names = ("query", "key", "value", "out")
        self.blocks = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH, bias=False) for name in names}) for _ in range(2)
        )
        self.after = Perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        for block in self.blocks:
            parts = [block[name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")]
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + block["out"](mixed.transpose(1, 2).flatten(2))
        loss: torch.Tensor = self.after(x)
        return loss


MODELS: dict[str, type[nn.Module]] = {"perceptron": Perceptron, "attention": Attention}
HEADS_SPLIT = {
    **{f"*{name}.weight": P("tp") for name in ("query", "key", "value")},
    "*out.weight": P(None, "tp"),
    "*up.*.weight": P("tp"),
    "*up.*.bias": P("tp"),
    "*down.*.weight": P(None, "tp"),
}
LAYOUTS: dict[str, tuple[dict[str, int], dict[str, P], P]] = {
    "replicas": ({"dp": 4}, {}, P("dp")),
    "heads": ({"tp": 4}, HEADS_SPLIT, P()),
    "heads and replicas": ({"dp": 2, "tp": 2}, HEADS_SPLIT, P("dp")),
    "split weights": ({"dp": 4}, {"*weight": P("dp")}, P("dp")),
    "split columns": ({"dp": 4}, {"*weight": P(None, "dp")}, P("dp")),
}


def made(model: str, layout: str) -> Program:
    """A model, its optimizer and a batch, laid out."""
    sizes, patterns, spec = LAYOUTS[layout]
    mesh = weft.make_mesh(sizes)
    torch.manual_seed(0)
    built = MODELS[model]()
    names = [name for name, _ in built.named_parameters()]
    used = {each: spec for each, spec in patterns.items() if any(Path(name).match(each) for name in names)}
    laid = weft.nn.shard_module(built, mesh, used)
    batch = weft.shard(torch.randn(BATCH, LENGTH, WIDTH), mesh, spec)
    return laid, torch.optim.SGD(laid.parameters(), lr=0.01), batch


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step of training."""
    model(batch).backward()
    optimizer.step()
    optimizer.zero_grad()


class Wait(NamedTuple):
    """How long one process waited for a movement: with whom, since when it was asked for, and from when to when."""

    group: str
    asked: float
    start: float
    end: float


def waits(log: CommLog) -> list[Wait]:
    """How long this process waited for each movement; what it went on beside, it waited for later, or not at all."""
    overlaps = {overlap.count: overlap for overlap in log.overlaps}
    found, before = [], 0
    for count, end in log.ends:
        if count > before:
            asked, overlap = log[before].started, overlaps.get(count)
            start = asked if overlap is None else end - overlap.waited
            found.append(Wait(group(log.records[before:count]), asked, start, end))
            before = count
    return found


def group(records: Sequence[CommRecord]) -> str:
    """What this process has in common with those that it exchanges something with: where it is along all other axes."""
    mesh, moved = records[0].target.mesh, {axis for record in records for axis in record.axes}
    slot = weft.distributed.process_index()
    places = zip(mesh.axis_names, mesh.strides, mesh.mesh_shape, strict=True)
    return str([slot // stride % size for axis, stride, size in places if axis not in moved])


def exposed(everyone: Sequence[Sequence[Wait]]) -> float:
    """The seconds of a step that a process waits for movements, on average: until the last has come, it waits for that one."""
    total = 0.0
    for movement in zip(*everyone, strict=True):
        for wait in movement:
            last = max(other.asked for other in movement if other.group == wait.group)
            total += max(0.0, wait.end - max(wait.start, last))
    return total / len(everyone)


def work(repetitions: int, written: Path) -> None:
    """What each of the processes does."""
    weft.distributed.init(backend="gloo")
    links = measured_links(rounds=15)
    weft.use_topology(links)
    meeting = torch.distributed.new_group(backend="gloo")
    torch.distributed.barrier(meeting)
    machine = weft.Machine.measure()
    cases = [(model, layout) for model in MODELS for layout in LAYOUTS]
    ready = {case: made(*case) for case in cases}
    times: dict[tuple[str, str], list[tuple[float, float]]] = {case: [] for case in cases}
    for turn in range(-2, repetitions):
        for case in random.Random(turn).sample(cases, len(cases)):
            torch.distributed.barrier(meeting)
            start = time.perf_counter()
            with weft.comm_log() as log:
                step(*ready[case])
            spent = time.perf_counter() - start
            everyone: list[tuple[float, list[Wait]]] = [(0.0, [])] * PROCESSES
            torch.distributed.all_gather_object(everyone, (spent, waits(log)), meeting)
            if turn >= 0:
                times[case].append((max(each for each, _ in everyone), exposed([moves for _, moves in everyone])))
    if weft.distributed.process_index() == 0:
        medians = {
            " ".join(case): [statistics.median(column) for column in zip(*rows, strict=True)]
            for case, rows in times.items()
        }
        computing = {"flops": machine.flops[4], "bandwidth": machine.bandwidth, "launch": machine.launch}
        written.write_text(json.dumps({"links": links.to_dict(), "computing": computing, "rows": medians}))
    weft.distributed.shutdown()


def launch(repetitions: int) -> dict[str, dict[str, object]]:
    """What the processes have measured."""
    with socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        written = Path(folder) / "rows.json"
        there = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--repetitions", str(repetitions), "--measure", str(written)]
        started = [
            subprocess.Popen(command, env={**os.environ, **there, "RANK": str(process), "LOCAL_RANK": str(process)})
            for process in range(PROCESSES)
        ]
        try:
            if any(process.wait(300) for process in started):
                raise RuntimeError("a process has failed: see above")
        finally:
            for process in started:
                process.kill()
        found: dict[str, dict[str, object]] = json.loads(written.read_text())
        return found


def table(found: dict[str, dict[str, object]]) -> str:
    """A row for each model and layout."""
    links = weft.Topology.from_dict(found["links"])
    flops, bandwidth, launch = (float(found["computing"][name]) for name in ("flops", "bandwidth", "launch"))  # type: ignore[arg-type]
    machine = weft.Machine("cpu", {4: flops}, 16 << 30, bandwidth, links, products=1.0, streaming=1.0, launch=launch)
    lines = [
        "| model | layout | step | movements | exposed | on paper | |",
        "|---|---|---|---|---|---|---|",
    ]
    beyond = 0
    with weft.use_topology(links):
        for case, figures in found["rows"].items():
            model, _, layout = case.partition(" ")
            seconds, waited = figures  # type: ignore[misc]
            report = weft.dryrun(step, *made(model, layout), topology=machine)
            count = sum(1 for each in report.movements if each.record.total_bytes)
            ratio = report.exposed / waited
            beyond += abs(ratio - 1) > WITHIN
            shown = [f"{1e3 * each:.1f} ms" for each in (waited, report.exposed)]
            lines.append(
                f"| {model} | {layout} | {1e3 * seconds:.0f} ms | {count} | {' | '.join(shown)} | {ratio:.2f} × |"
            )
    cores = os.cpu_count()
    lines += ["", f"4 processes on {cores} cores; {len(found['rows']) - beyond} of {len(found['rows'])} within 25 %."]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repetitions", type=int, default=15)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    options.add_argument("--json", type=Path, default=None, help="a file to write what was measured to")
    options.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    said = options.parse_args()
    if said.measure is not None:
        work(said.repetitions, said.measure)
        return
    found = launch(said.repetitions)
    if said.json is not None:
        said.json.write_text(json.dumps(found))
    shown = table(found)
    print(shown)
    if said.write is not None:
        write_between(said.write, "exposed", shown)


if __name__ == "__main__":
    main()
