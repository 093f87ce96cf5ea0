"""Four small models on 4 Gloo processes: steps in five hand-written layouts and in the chosen one, and what paper says of them.

    python benchmarks/autoshard/processes.py --repetitions 15 --json rows.json

First the links between the processes are measured; layouts are chosen, and steps priced on paper, by these. Then steps of all
layouts of a model are timed in turns. A step takes as long as its slowest process; the median counts. "exposed" is what a process
waits for movements, from when each begins to when it is done: of each step what the quickest process waits, because the others
also wait for it to come.
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
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from socket import socket

import torch
from catalogue import Case, Laid, small_cases
from table import CHOSEN, step

import weft
from weft.inspect.links import measured_links

PROCESSES, CORES = 4, os.cpu_count() or 1


@dataclass(frozen=True)
class Row:
    """One layout of one model: seconds of a step and of the movements in it, measured and on paper."""

    model: str
    layout: str
    seconds: float
    waited: float
    on_paper: float
    exposed: float


@dataclass(frozen=True)
class Lay:
    """What lays out a model and its batch."""

    model: Callable[[torch.nn.Module, weft.DeviceMesh], torch.nn.Module]
    batch: Callable[[tuple[torch.Tensor, ...], weft.DeviceMesh], tuple[torch.Tensor, ...]]


def by_hand(laid: Laid) -> Lay:
    """A hand-written layout."""
    return Lay(laid.lay, laid.lay_batch)


def chosen(case: Case, machine: weft.Machine) -> Lay:
    """What autoshard chooses for a machine."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    choice = weft.nn.autoshard(case.model(), mesh, case.batch(), topology=machine)

    def lay(model: torch.nn.Module, mesh: weft.DeviceMesh) -> torch.nn.Module:
        weft.nn.shard_module(model, mesh, choice.patterns)
        return weft.nn.shard_activations(model, mesh, **choice.activations)

    return Lay(lay, lambda batch, mesh: tuple(map(lambda x, spec: weft.shard(x, mesh, spec), batch, choice.batch)))


def layouts(case: Case, machine: weft.Machine) -> dict[str, Lay]:
    """All layouts of a model."""
    return {**{name: by_hand(laid) for name, laid in case.layouts.items()}, CHOSEN: chosen(case, machine)}


def made(case: Case, lay: Lay) -> tuple[torch.nn.Module, torch.optim.Optimizer, tuple[torch.Tensor, ...]]:
    """A model that is laid out, its optimizer and its batch."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    model, batch = case.model(), case.batch()
    model = lay.model(model, mesh)
    return model, torch.optim.AdamW(model.parameters(), foreach=False), lay.batch(batch, mesh)


def machine_from(said: dict[str, object]) -> weft.Machine:
    """The machine that a parent has described."""
    topology = weft.Topology.from_dict(said["topology"])  # type: ignore[arg-type]
    flops, bandwidth, launch = (float(said[name]) for name in ("flops", "bandwidth", "launch"))  # type: ignore[arg-type]
    figures = {4: flops, 8: flops / 2}
    return weft.Machine("cpu", figures, 16 << 30, bandwidth, topology, products=1.0, streaming=1.0, launch=launch)


def waited(log: weft.watch.comm_log.CommLog) -> float:
    """The seconds from the beginning of each movement to its end."""
    total, before = 0.0, 0
    for count, end in log.ends:
        if count > before:
            total += end - log[before].started
            before = count
    return total


def work(said: dict[str, object], model: str, repetitions: int, path: str) -> None:
    """What each of the processes does."""
    found = {name: layouts(case, machine_from(said)) for name, case in small_cases().items() if model in name}
    weft.distributed.init(backend="gloo")
    meeting = torch.distributed.new_group(backend="gloo")
    rows: dict[str, dict[str, tuple[float, float]]] = {}
    for name, ways in found.items():
        case = small_cases()[name]
        ready = {layout: made(case, lay) for layout, lay in ways.items()}
        times: dict[str, list[tuple[float, float]]] = {layout: [] for layout in ready}
        for turn in range(-3, repetitions):
            for layout in random.Random(turn).sample(sorted(ready), len(ready)):
                torch.distributed.barrier(meeting)
                start = time.perf_counter()
                with weft.comm_log() as log:
                    step(*ready[layout])
                taken = torch.tensor([time.perf_counter() - start, -waited(log)])
                torch.distributed.all_reduce(taken, torch.distributed.ReduceOp.MAX, meeting)
                if turn >= 0:
                    times[layout].append((float(taken[0]), -float(taken[1])))
        rows[name] = {
            layout: tuple(statistics.median(column) for column in zip(*each, strict=True))  # type: ignore[misc]
            for layout, each in times.items()
        }
    if weft.distributed.process_index() == 0:
        Path(path).write_text(json.dumps(rows))
    weft.distributed.shutdown()


def links(path: str) -> None:
    """Measures the links between the processes."""
    weft.distributed.init(backend="gloo")
    found = measured_links(1 << 20, 15)
    if weft.distributed.process_index() == 0:
        Path(path).write_text(json.dumps(found.to_dict()))
    weft.distributed.shutdown()


def together(arguments: list[str], path: Path) -> dict[str, dict[str, list[float]]]:
    """Runs this program in several processes; gives what they write."""
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    there = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--json", str(path)],
            env={**os.environ, **there, "RANK": str(process), "LOCAL_RANK": str(process)},
        )
        for process in range(PROCESSES)
    ]
    if any(process.wait() for process in started):
        raise RuntimeError("a process has failed: see above")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def main() -> None:
    """Measures links, chooses, times, prices, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--model", default="", help="a part of its name; all by default")
    parser.add_argument("--machine", help="what a parent measured")
    parser.add_argument("--json", type=Path, default=Path("rows.json"))
    given = parser.parse_args()
    if "RANK" in os.environ:
        if given.machine is None:
            links(str(given.json))
        else:
            work(json.loads(given.machine), given.model, given.repetitions, str(given.json))
        return
    torch.set_num_threads(1)
    here = weft.Machine.measure()
    share = min(1.0, CORES / PROCESSES)
    said: dict[str, object] = {
        "topology": together([], given.json),
        "flops": here.flops[4] * share,
        "bandwidth": here.bandwidth * share,
        "launch": here.launch,
    }
    asked = ["--model", given.model, "--repetitions", str(given.repetitions)]
    measured = together(["--machine", json.dumps(said), *asked], given.json)
    machine = machine_from(said)
    rows = []
    for name in measured:
        case = small_cases()[name]
        for layout, lay in layouts(case, machine).items():
            report = weft.dryrun(step, *made(case, lay), topology=machine)
            rows.append(Row(name, layout, *measured[name][layout], report.seconds, report.exposed))
    print(
        "| model | layout | step | waited for movements | step on paper | exposed on paper |\n|---|---|---|---|---|---|"
    )
    for row in rows:
        times = [f"{1e3 * each:.1f} ms" for each in (row.seconds, row.waited, row.on_paper, row.exposed)]
        print(f"| {row.model} | {row.layout} | {' | '.join(times)} |")
    for name in measured:
        best = min(row.seconds for row in rows if row.model == name and row.layout != CHOSEN)
        own = next(row.seconds for row in rows if row.model == name and row.layout == CHOSEN)
        print(f"{name}: the chosen layout takes {own / best:.2f} x the best hand-written one")
    given.json.write_text(json.dumps([asdict(replace(row)) for row in rows], indent=1))


if __name__ == "__main__":
    main()
