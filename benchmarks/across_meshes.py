"""Pending sums from mesh to mesh: what the device that receives most receives over its bound, and what planning takes.

    python benchmarks/across_meshes.py                          some seconds
    python benchmarks/across_meshes.py --write docs/planning.md

All of a source's devices hold contributions to 4096 × 4096 elements, whole or split by rows; the target's are others. A row is the
worst of eight movements: rows, a grid, replicas of rows, and all of it everywhere.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from pages import write_between

from weft.devices import CPU
from weft.planning import plan_layouts
from weft.sharding import DeviceMesh, ReduceOp
from weft.sharding.layout import Layout

SIZES = (
    (4, 128),
    (4, 512),
    (4, 1024),
    (16, 128),
    (16, 512),
    (16, 1024),
    (128, 16),
    (128, 128),
    (128, 512),
    (512, 128),
    (512, 512),
)
SHAPE = (4096, 4096)


def mesh_of(first: int, count: int, names: str) -> DeviceMesh:
    """A mesh of two axes, about as long as each other."""
    long = 1 << math.ceil(math.log2(count) / 2)
    return DeviceMesh([CPU(first + number) for number in range(count)], (long, count // long), tuple(names))


def row(few: int, many: int) -> str:
    """The figures of one pair of sizes."""
    here, there = mesh_of(0, few, "ab"), mesh_of(few, many, "pq")
    sources = [
        Layout(here, ((), ()), dict.fromkeys("ab", ReduceOp.SUM)),
        Layout(here, (("b",), ()), {"a": ReduceOp.SUM}),
    ]
    targets = [Layout(there, splits) for splits in ((("p", "q"), ()), (("p",), ("q",)), (("p",), ()), ((), ()))]
    over, took = [], []
    for source, target in product(sources, targets):
        gc.collect()
        start = time.process_time()
        plan = plan_layouts(source, target, SHAPE, 4)
        took.append(time.process_time() - start)
        over.append(plan.bytes_received.max / plan.lower_bound.max)
    return f"| {few} → {many} | {max(over):.2f} × | {1e3 * max(took):.0f} ms |"


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", type=Path, default=None, help="a page to write the table to, between its marks")
    said = options.parse_args()
    row(4, 8)  # what is first done once is not counted
    lines = [
        "| devices | over the bound, at most | planned in, at most |",
        "|---|---|---|",
        *(row(*each) for each in SIZES),
    ]
    shown = "\n".join(lines)
    print(shown)
    if said.write is not None:
        write_between(said.write, "across", shown)


if __name__ == "__main__":
    main()
