"""What is hidden of movements on a GPU: asked for with `async_op=True` while products are computed, beside one after the other.

    python benchmarks/gpu/overlap.py

Four NCCL processes share one GPU, which takes them for four hosts (`NCCL_HOSTID`). For each movement: the milliseconds of the movement
alone, of products that take about as long alone, of both one after the other, and of both at once; what was hidden is what both
at once take less, as a part of the shorter of the two. The log's own figure stands beside it: between accelerators it says how
long the host waited. Kernels of movements and products share the device's multiprocessors here, as they do on each of
several GPUs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import weft
from tests.multiprocess.launching import Processes
from weft import P

PROCESSES, TURNS = 4, 15
ROWS, COLUMNS = 4096, 4096
Ways = dict[str, Callable[[], object]]


def seconds(ways: Ways) -> dict[str, float]:
    """The median of each way, timed in turns, on the process that took longest."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-3, TURNS):
        for name, go in ways.items():
            torch.distributed.all_reduce(torch.zeros(1, device="cuda"))  # all begin together
            torch.cuda.synchronize()
            start = time.perf_counter()
            go()
            torch.cuda.synchronize()
            spent = torch.tensor(time.perf_counter() - start, device="cuda")
            torch.distributed.all_reduce(spent, torch.distributed.ReduceOp.MAX)
            if turn >= 0:
                found[name].append(float(spent))
    return {name: sorted(times)[len(times) // 2] for name, times in found.items()}


def products(count: int) -> Callable[[], None]:
    """So many products of matrices of this process's own."""
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def go() -> None:
        for _ in range(count):
            a @ a

    return go


def movements(mesh: weft.DeviceMesh) -> dict[str, tuple[torch.Tensor, weft.NamedMapping]]:
    """Tensors of 64 MiB, and where they go."""
    summed = weft.NamedMapping(mesh, P(), unreduced={"d": "sum"})
    rows, columns, whole = (weft.NamedMapping(mesh, spec) for spec in (P("d"), P(None, "d"), P()))
    split = weft.ones(ROWS, COLUMNS, mapping=rows)
    pending = weft.ones(ROWS, COLUMNS, mapping=summed)
    return {
        "all_gather": (split, whole),
        "all_reduce": (pending, whole),
        "reduce_scatter": (pending, rows),
        "all_to_all": (split, columns),
    }


def work() -> None:
    """What each process does."""
    weft.distributed.init(backend="nccl", timeout=120)
    mesh = weft.make_mesh({"d": PROCESSES})
    one = seconds({"product": products(100)})["product"] / 100
    rows = {}
    for name, (x, there) in movements(mesh).items():
        alone = seconds({"moved": lambda x=x, there=there: x.redistribute(there)})["moved"]
        compute = products(max(1, round(alone / one)))

        def at_once(x: torch.Tensor = x, there: weft.NamedMapping = there, go: Callable[[], None] = compute) -> None:
            y = x.redistribute(there, async_op=True)
            go()
            y.wait()

        def in_turn(x: torch.Tensor = x, there: weft.NamedMapping = there, go: Callable[[], None] = compute) -> None:
            x.redistribute(there)
            go()

        took = seconds(
            {"moved": lambda x=x, there=there: x.redistribute(there), "computed": compute, "in turn": in_turn}
        )
        took |= seconds({"at once": at_once})
        with weft.comm_log() as log:
            at_once()
        shorter = min(took["moved"], took["computed"])
        rows[name] = {way: round(1e3 * each, 3) for way, each in took.items()}
        rows[name]["hidden"] = round((took["in turn"] - took["at once"]) / shorter, 2)
        rows[name]["hidden by the log"] = round(log.hidden, 2)
    if weft.distributed.process_index() == 0:
        print(json.dumps(rows), flush=True)
    weft.distributed.shutdown()


def main() -> None:
    """Starts the processes, and shows what they found."""
    if "RANK" in os.environ:
        work()
        return
    assert torch.cuda.is_available(), "this needs a GPU"
    with Processes([__file__], PROCESSES, fresh=True) as started:
        ended = started.wait(280)
    if any(process.status for process in ended):
        raise SystemExit("\n".join(process.err for process in ended))
    rows = json.loads(ended[0].out.splitlines()[-1])
    columns = list(next(iter(rows.values())))
    print("| 64 MiB | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(str(row[column]) for column in columns) + " |")


if __name__ == "__main__":
    main()
