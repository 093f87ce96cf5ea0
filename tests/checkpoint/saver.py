"""One of the processes that save generation after generation together, until one is killed; started by `faults.py`."""

from __future__ import annotations

import sys

import torch

import weft
from weft import P

SIZES = (3, 70_001, 300_000)


def main(path: str, generation: int, how: str) -> None:
    weft.distributed.init(timeout=10)
    mesh = weft.make_mesh({"a": weft.distributed.process_count()})
    while True:
        generation += 1
        tensors = {
            str(size): weft.shard(torch.full((size,), generation, dtype=torch.int32), mesh, P("a")) for size in SIZES
        }
        handle = weft.checkpoint.save({"step": generation, "tensors": tensors}, path, wait=how == "wait")
        if handle is not None:
            handle.wait(10)
        print("saved", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
