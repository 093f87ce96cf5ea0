"""What the host does for one compiled transformer block, forward and backward: plain torch, and Weft on 8 devices of one process.

    python benchmarks/compiled_blocks.py

Blocks so small that the host is all there is, each compiled by itself, as the blocks of `benchmarks/gpu/steps.py`. The ways take
turns, and the least time of 60 rounds counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.gpu.steps import Size, compiled, loss_fn, plain_model, sharded
from weft.runtime import machine

SIZE = Size(4, 64, 4, 2, 8)
Phases = dict[str, Callable[[], None]]


def phases(is_sharded: bool) -> Phases:
    """Forward and backward, compiled."""
    model, x = plain_model(SIZE), torch.randn(SIZE.batch, SIZE.length, SIZE.width)
    if is_sharded:
        model, x = sharded(model, x, SIZE)
    compiled(model)
    losses: list[torch.Tensor] = []

    def forward() -> None:
        model.zero_grad(set_to_none=True)
        losses.append(loss_fn(model, x))

    def backward() -> None:
        losses.pop().backward()

    for _ in range(4):
        forward()
        backward()
    return {"forward": forward, "backward": backward}


def least() -> dict[tuple[str, str], float]:
    """Microseconds for a block, by way and phase."""
    ways = {"plain torch": phases(is_sharded=False), "Weft": phases(is_sharded=True)}
    found: dict[tuple[str, str], float] = {}
    for _ in range(60):
        for way, each in ways.items():
            for phase, run in each.items():
                begin = time.perf_counter()
                run()
                taken = (time.perf_counter() - begin) * 1e6 / SIZE.blocks
                found[way, phase] = min(found.get((way, phase), taken), taken)
    return found


def main() -> None:
    """Prints microseconds for a block, in each memory."""
    torch.set_num_threads(1)
    sys.stdout.write("| memory | phase | plain torch | Weft | |\n|---|---|---|---|---|\n")
    for memory in ("one", "apart"):
        machine.use_separate_memory(memory == "apart")
        found = least()
        for phase in ("forward", "backward"):
            plain, ours = found["plain torch", phase], found["Weft", phase]
            sys.stdout.write(f"| {memory} | {phase} | {plain:.0f} µs | {ours:.0f} µs | {ours / plain:.2f} × |\n")


if __name__ == "__main__":
    main()
