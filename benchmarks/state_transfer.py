"""A whole state from 2 processes to 2 others, beside two flat buffers of the same size; and planning one of 70B parameters.

    python benchmarks/state_transfer.py                   4 Gloo processes
    python benchmarks/state_transfer.py --json out.json   the table as JSON, too

The ways are timed in turns, and the median of each counts. A repetition takes as long as its slowest process.
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
from collections.abc import Callable
from pathlib import Path
from socket import socket

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist

import weft
from weft import CPU, P
from weft.sharding import DeviceMesh, NamedMapping, TensorLayout

KIB, MIB = 1 << 10, 1 << 20
LIMIT = 1.3
"""How long a state may take, compared with two flat buffers."""


def sizes(name: str) -> list[int]:
    """The bytes of the tensors of a state."""
    if name == "20 of 16 MiB":
        return [16 * MIB] * 20
    return [KIB + (MIB - KIB) * number // 199 // KIB * KIB for number in range(200)]


def state(name: str, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """A state whose tensors are split by rows."""
    mapping = NamedMapping(mesh, P("x", None))
    return {str(number): weft.ones(size // 256, 64, mapping=mapping) for number, size in enumerate(sizes(name))}


def flat(nbytes: int) -> Callable[[], None]:
    """Two flat buffers, from each of two processes to another."""
    process = dist.get_rank()
    buffer = torch.ones(nbytes // 2, dtype=torch.uint8)

    def go() -> None:
        if process < 2:
            dist.send(buffer, process + 2)
        else:
            dist.recv(torch.empty_like(buffer), process - 2)

    return go


def seconds(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, tuple[float, float]]:
    """The median of each way, as long as its slowest process takes, and the processors' seconds of all processes together.

    The latter are hardly changed by other work on the machine.
    """
    found: dict[str, list[torch.Tensor]] = {name: [] for name in ways}
    for go in (*ways.values(), *ways.values()):
        go()
    for turn in range(turns):
        for name in random.Random(turn).sample(sorted(ways), len(ways)):
            dist.barrier()
            start, busy = time.perf_counter(), time.process_time()
            ways[name]()
            spent = torch.tensor(time.perf_counter() - start), torch.tensor(time.process_time() - busy)
            dist.all_reduce(spent[0], dist.ReduceOp.MAX)
            dist.all_reduce(spent[1], dist.ReduceOp.SUM)
            found[name].append(torch.stack(spent))
    medians = {name: torch.stack(each).median(0).values for name, each in found.items()}
    return {name: (float(each[0]), float(each[1])) for name, each in medians.items()}


def planning() -> dict[str, object]:
    """A state of 70B parameters from 512 devices to 128, planned from nothing."""
    trainer, server = weft.make_mesh({"dp": 64, "tp": 8}), weft.make_mesh({"tp": 128})
    wide, hidden, heads, words = 8192, 28672, 1024, 128256
    block = {
        "attention.q": (wide, wide), "attention.k": (heads, wide), "attention.v": (heads, wide), "attention.o": (wide, wide),
        "mlp.gate": (hidden, wide), "mlp.up": (hidden, wide), "mlp.down": (wide, hidden),
        "norm1": (wide,), "norm2": (wide,),
    }  # fmt: skip
    shapes = {f"layers.{i}.{name}": shape for i in range(80) for name, shape in block.items()}
    shapes |= {"embedding": (words, wide), "head": (words, wide), "norm": (wide,)}
    given = {
        name: TensorLayout(
            "bfloat16", shape, NamedMapping(trainer, P(("dp", "tp")) if len(shape) == 1 else P("dp", "tp"))
        )
        for name, shape in shapes.items()
    }
    wanted = {"*norm*": P(), "*.o": P(None, "tp"), "*.down": P(None, "tp"), "*": P("tp")}
    took, busy, plan_state = (
        [],
        [],
        weft.plan_state,
    )  # what is imported when it is first touched is not what is asked for
    gc.collect()  # nor is Python's collection of garbage, which looks at all that torch has loaded: a tenth of a second
    for turn in range(5):
        started, working = time.perf_counter(), time.process_time()
        plan = plan_state(given, wanted, mesh=server)
        took.append(time.perf_counter() - started)
        busy.append(time.process_time() - working)
        if not turn:
            print(plan)
    return {
        "case": "70B from 512 devices to 128, planned",
        "first_ms": round(took[0] * 1e3, 1),
        "first_processor_ms": round(busy[0] * 1e3, 1),
        "again_ms": round(statistics.median(took[1:]) * 1e3, 1),
        "over_bound": plan.bytes_received.total / plan.lower_bound.total,
        "received_gib": round(plan.bytes_received.total / 2**30, 1),
    }


def work(turns: int, written: Path | None) -> None:
    """What each process does."""
    weft.distributed.init()
    here, there = DeviceMesh([CPU(0), CPU(1)], (2,), ("x",)), DeviceMesh([CPU(2), CPU(3)], (2,), ("x",))
    rows: list[dict[str, object]] = []
    for name in ("200 of 1 KiB to 1 MiB", "20 of 16 MiB"):
        given = state(name, here)
        total = sum(x.nbytes for x in given.values())
        by_rows, by_columns = NamedMapping(there, P("x", None)), NamedMapping(there, P(None, "x"))
        into = weft.transfer_state(given, by_rows)
        ways: dict[str, Callable[[], object]] = {
            "flat": flat(total),
            "state": lambda given=given, by_rows=by_rows: weft.transfer_state(given, by_rows),
            "into": lambda given=given, into=into: weft.transfer_state(given, into=into),
            "verified": lambda given=given, by_rows=by_rows: weft.transfer_state(given, by_rows, verify=True),
            "columns": lambda given=given, by_columns=by_columns: weft.transfer_state(given, by_columns),
            "one by one": lambda given=given, by_rows=by_rows: [x.redistribute(by_rows) for x in given.values()],
        }
        took = seconds(ways, turns)
        rows.append({"case": name, "mib": round(total / MIB, 1)})
        for which, kind in enumerate(("ms", "processor_ms")):
            rows[-1][kind] = {way: round(each[which] * 1e3, 1) for way, each in took.items()}
            rows[-1][f"{kind}_over_flat"] = {
                way: round(each[which] / took["flat"][which], 2) for way, each in took.items()
            }
    if dist.get_rank() == 0:
        for row in rows:
            print(json.dumps(row), flush=True)
        if written is not None:
            written.write_text(json.dumps(rows, indent=1))
    weft.distributed.shutdown()


def main() -> None:
    """Start the processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options.turns, options.json)
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
    planned = planning()
    print(json.dumps(planned))
    if options.json is not None:
        options.json.write_text(json.dumps([*json.loads(options.json.read_text()), planned], indent=1))


if __name__ == "__main__":
    main()
