"""Prints how many bytes a save and loads take at their peak, above the state; started by `test_memory.py`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import weft
from weft import P

ROWS, COLUMNS, COUNT = 4096, 1024, 6  # 16.8 MB each


def model(spec: P) -> torch.nn.Module:
    """Matrices on four devices, each of which has its part in a memory of its own."""
    module = torch.nn.Module()
    mesh = weft.make_mesh({"x": 4})
    for i in range(COUNT):
        value = weft.shard(torch.full((ROWS, COLUMNS), float(i)), mesh, spec)
        module.register_parameter(f"matrix{i}", torch.nn.Parameter(value))
    return module


def resident(name: str) -> int:
    """What the system says of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def peak(run: Callable[[], object]) -> int:
    """The most bytes that a call takes above those that were there."""
    gc.collect()
    before = resident("VmRSS:")
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return resident("VmHWM:") - before


def main(folder: Path) -> None:
    """Saves rows, and loads them as rows and as columns."""
    small = torch.nn.Linear(3, 3)
    weft.checkpoint.save(small, folder / "small")  # all is imported
    weft.checkpoint.load(folder / "small", small)
    rows, columns = model(P("x")), model(P(None, "x"))
    runs = {
        "nothing": lambda: None,
        "save": lambda: weft.checkpoint.save(rows, folder / "large"),
        "rows": lambda: weft.checkpoint.load(folder / "large", rows),
        "columns": lambda: weft.checkpoint.load(folder / "large", columns),
        "whole": lambda: weft.checkpoint.load(folder / "large"),
    }
    print({name: peak(run) for name, run in runs.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
