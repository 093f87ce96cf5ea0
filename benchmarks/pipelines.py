"""How long places of a pipeline really wait: stages that sleep, on several processes, against each schedule's own figure.

    python benchmarks/pipelines.py 2 4

prints one row for each schedule and number of processes: the bubble that the table says and the one that was measured. A
stage sleeps for as long as its work is said to take, once for the forward pass, once for the gradient of what came in and
once for that of its weight, so that processes on few cores do not compete. The measured bubble is the part of the wall time
of a step, in all processes together, in which none of that is slept.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

import weft
from weft.schedules import NAMES, schedule

UNIT, MICROBATCHES, STEPS = 0.1, 8, 4
"""Seconds of one piece of work, microbatches, and how many steps are measured: the quickest counts."""
ONE_STAGE = ("gpipe", "1f1b", "zb-h1")


class _Sleep(torch.autograd.Function):
    """The identity, which sleeps on the way there or on the way back."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, on_the_way_there: bool) -> torch.Tensor:
        if on_the_way_there:
            time.sleep(UNIT)
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(UNIT)
        return gradient.clone(), None


class Sleeper(torch.nn.Module):
    """A stage whose forward pass, input gradient and weight gradient take the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.requires_grad:
            x = x + 0 * self.weight  # the first stage has a way back to go, too
        return _Sleep.apply(x, True) + _Sleep.apply(self.weight, False)  # type: ignore[no-any-return, no-untyped-call]


def measured(name: str, places: int) -> dict[str, float]:
    """The schedule's own bubble and the measured one, in this process of several."""
    table = schedule(name, places * (1 if name in ONE_STAGE else 2), places, MICROBATCHES)
    meshes = [weft.DeviceMesh([device], (1,), ("tp",)) for device in weft.devices()[:places]]
    pipe = weft.nn.pipeline([Sleeper() for _ in range(table.stages)], meshes, table, loss=lambda x: x.mean())
    batch = torch.ones(MICROBATCHES, 4)
    pipe.step(batch)
    walls = []
    for _ in range(STEPS):
        weft.shard(
            torch.ones(places), weft.make_mesh({"all": places}), weft.P("all")
        ).full_tensor()  # all begin together
        start = time.perf_counter()
        pipe.step(batch)
        walls.append(time.perf_counter() - start)
    slept = 3 * UNIT * MICROBATCHES * table.stages / places
    wall = min(weft_max(walls, places))
    return {"own": table.bubble, "measured": 1 - slept / wall, "length": table.timeline().length * UNIT, "wall": wall}


def weft_max(walls: list[float], places: int) -> list[float]:
    """The longest time of any process, for each step."""
    mine = weft.from_local([torch.tensor([walls])], weft.NamedMapping(weft.make_mesh({"all": places}), weft.P("all")))
    return [float(x) for x in mine.amax(0)]


def run(places: int) -> None:
    """One process: measures every schedule, and prints what it found if it is the first."""
    for name in NAMES:
        found = measured(name, places)
        if weft.on_main():
            print(json.dumps({"schedule": name, "processes": places, **found}), flush=True)
    weft.distributed.shutdown()


def launched(places: int) -> list[dict[str, float]]:
    """What so many processes measure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for process in range(places):
        where = {"RANK": str(process), "LOCAL_RANK": str(process), "WORLD_SIZE": str(places), "MASTER_PORT": str(port)}
        env = {
            **os.environ,
            **where,
            "LOCAL_WORLD_SIZE": str(places),
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(Path(__file__)), "--process", str(places)]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    words = [process.communicate(timeout=600)[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit("a process has failed")
    return [json.loads(line) for line in words[0].splitlines()]


def main() -> None:
    """Measures with each number of processes that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processes", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--process", type=int, help="run as one of so many processes")
    asked = parser.parse_args()
    if asked.process:
        run(asked.process)
        return
    print("| schedule | processes | bubble of the table | measured | step of the table | measured |")
    print("|---|---|---|---|---|---|")
    for places in asked.processes:
        for row in launched(places):
            print(
                f"| {row['schedule']} | {places} | {row['own']:.1%} | {row['measured']:.1%} | "
                f"{1000 * row['length']:.0f} ms | {1000 * row['wall']:.0f} ms |"
            )


if __name__ == "__main__":
    main()
