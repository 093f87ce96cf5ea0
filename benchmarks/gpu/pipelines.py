"""Pipelines on a GPU: every schedule beside the unpipelined model, in one process and between processes over NCCL.

    python benchmarks/gpu/pipelines.py

Prints one line for each: the seconds that two steps and a forward pass took, the first of which learns shapes and makes
connections. A schedule whose gradients differ from those of the unpipelined model, in float64, ends it with an error. NCCL
takes two processes on one GPU for processes of two hosts (`NCCL_HOSTID`).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch

from tests.multiprocess.launching import ROOT, Processes
from tests.nn.pipelining import check, every

PROGRAM = ROOT / "tests" / "nn" / "pipelining_processes.py"


def main() -> None:
    """One process with eight devices, then two processes."""
    assert torch.cuda.is_available(), "this needs a GPU"
    for places in (2, 4):
        for name, stages in every(places):
            start = time.perf_counter()
            check(name, stages, places, 8)
            torch.cuda.synchronize()
            print(f"{name} in {places} places of one process: {time.perf_counter() - start:.2f} s", flush=True)
    for name, _ in every(2):
        start = time.perf_counter()
        with Processes([str(PROGRAM), "2", "1", name], 2, fresh=True) as started:
            ended = started.wait(200)
        if [process.status for process in ended] != [0, 0]:
            raise SystemExit("\n".join(process.err for process in ended))
        print(f"{name} in 2 processes, started and ended: {time.perf_counter() - start:.2f} s", flush=True)


if __name__ == "__main__":
    main()
