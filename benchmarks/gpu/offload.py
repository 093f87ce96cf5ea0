"""Fully sharded training on a GPU with parameters on it and in host memory: what the GPU holds, what a step takes.

    python benchmarks/gpu/offload.py                # 8 blocks, 2048 wide, one GPU
    python benchmarks/gpu/offload.py --devices 8    # the same GPU as 8 devices with one memory

Prints for each way the most bytes that torch had on the GPU in a step, those it has between steps, and the median time. The
losses of both ways are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch

import weft
from examples.models import mlp
from weft import P


def trained(offload: str | None, devices: int, width: int, depth: int, steps: int) -> list[float]:
    """Trains, prints what it took, and gives the losses."""
    mesh = weft.make_mesh({"dp": devices})
    torch.manual_seed(0)
    model = weft.nn.fully_shard(mlp.MLP(width, 4 * width, depth, 64), mesh, param_dtype=torch.bfloat16, offload=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = weft.shard(torch.randn(4096, width), mesh, P("dp"))
    losses, seconds = [], []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    del loss
    print(
        f"offload={offload}: at most {torch.cuda.max_memory_allocated() >> 20:,} MiB, between steps "
        f"{torch.cuda.memory_allocated() >> 20:,} MiB, a step {statistics.median(seconds[2:]) * 1e3:.1f} ms",
        flush=True,
    )
    return losses


def main() -> None:
    """Both ways."""
    assert torch.cuda.is_available(), "this needs a GPU"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    found = []
    for offload in (None, "cpu"):
        found.append(trained(offload, options.devices, options.width, options.depth, options.steps))
        torch.cuda.empty_cache()
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)


if __name__ == "__main__":
    main()
