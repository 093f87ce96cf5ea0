"""A layer of experts, split over 8 logical devices, beside the same layer in plain torch: time and bytes of tokens.

    WEFT_VIRTUAL_ACCELERATORS=8 python benchmarks/gpu/experts.py    # as wide as Mixtral 8x7B, 4,096 tokens, bfloat16
    python benchmarks/gpu/experts.py --small                        # a size for a laptop, in float32

Forward and backward are timed together. In one memory the devices share storage, so a step should cost little more than plain
torch; with memories apart each device runs its own products, and rows are copied between them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import silu

import weft
from weft import P
from weft.runtime import machine

EXPERTS, TOP, DEVICES = 8, 2, 8


def layer(x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Experts as libraries of models write them."""
    weight, chosen = (x @ router).float().softmax(-1).topk(TOP)
    ids, order = chosen.reshape(-1).sort()
    counts = ids.int() if x.is_cuda else ids.float()
    ends = torch.histc(counts, bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
    gate, value = torch._grouped_mm(x[order // TOP], up, offs=ends).chunk(2, dim=-1)
    made = torch._grouped_mm(silu(gate) * value, down, offs=ends)
    made = made * weight.reshape(-1)[order].unsqueeze(-1).to(made.dtype)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0), device=order.device)
    return made[back].view(x.size(0), TOP, -1).sum(1)


def milliseconds(run: Callable[[], object], times: int) -> float:
    """The median time of a run, with the device's work done."""
    taken = []
    for _ in range(times + 2):
        synchronize()
        begin = time.perf_counter()
        run()
        synchronize()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[2:])


def synchronize() -> None:
    """Waits for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Prints a row for plain torch, and one for each memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a size for a laptop")
    small = parser.parse_args().small
    tokens, dim, hidden = (256, 64, 96) if small else (4096, 4096, 14336)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    shapes = [(tokens, dim), (dim, EXPERTS), (EXPERTS, dim, 2 * hidden), (EXPERTS, hidden, dim)]
    torch.manual_seed(0)
    plain = [(torch.randn(shape, device=device) / 8).to(dtype).requires_grad_() for shape in shapes]

    def step(given: list[torch.Tensor]) -> None:
        layer(*given).float().square().mean().backward()

    print(f"plain torch      {milliseconds(lambda: step(plain), 10):8.2f} ms")
    for name, separate in (("one memory", False), ("memories apart", True)):
        machine.use_separate_memory(separate)
        kind = weft.Accelerator if device == "cuda" else weft.CPU
        mesh = weft.DeviceMesh([kind(i) for i in range(DEVICES)], (DEVICES,), ("ep",))
        specs = (P("ep"), P(), P("ep"), P("ep"))
        given = [weft.shard(x.detach(), mesh, spec).requires_grad_() for x, spec in zip(plain, specs, strict=True)]
        with weft.comm_log() as log:
            step(given)
        sent = [r for r in log if r.rows and r.shape == (tokens * TOP, dim)]
        mebibytes = sum(r.total_bytes for r in sent) / (1 << 20)
        print(
            f"{name:16} {milliseconds(lambda g=given: step(g), 10):8.2f} ms, {mebibytes:,.1f} MiB of tokens in {len(sent)} exchanges"
        )


if __name__ == "__main__":
    main()
