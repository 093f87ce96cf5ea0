"""Times attention of a sequence that is split over 8 logical devices on one GPU, against one call of flash attention.

    python benchmarks/gpu/attention.py             # about a minute
    python benchmarks/gpu/attention.py --quick

Each logical device has a memory of its own. As they are one GPU, they compute together: the time of each way is that of putting
the sequence together, of one call, and of cutting it again. "in turns" is a ring as 8 GPUs run it, each with calls of its own,
merging what it sees: of that, the time of all devices' kernels, which one host cannot start as fast as 8 could. Prints a row
for each; with $OUT set, writes everything to $OUT/attention.json.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch
import torch.nn.functional as nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import weft
from weft import P
from weft.handlers.attention.together import KINDS
from weft.runtime.machine import use_separate_memory

GOAL = 1.15
ON_GPU = torch.cuda.is_available()
WHERE = "cuda" if ON_GPU else "cpu"
WAYS = ("split heads", "ring", "gather keys")
HEADS, OF_KEYS, FEATURES = (32, 8, 128) if ON_GPU else (8, 8, 16)


@dataclass(frozen=True)
class Row:
    """One figure: milliseconds of one call and of a way, and how far the way's result is from it."""

    tokens: int
    causal: bool
    way: str
    what: str
    once: float
    split: float
    error: float

    @property
    def ratio(self) -> float:
        return self.split / self.once


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median time of a run, until its last kernel has ended."""
    taken = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        run()
        if ON_GPU:
            torch.cuda.synchronize()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[2:])


def kernels(run: Callable[[], object], repeats: int) -> float:
    """The time of all kernels of a run on a GPU, in milliseconds."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    on_gpu = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.device_time for event in on_gpu) / 1e3 / repeats


def attended(given: list[torch.Tensor], causal: bool) -> torch.Tensor:
    """Attention, by the kernel that is set."""
    return nn.scaled_dot_product_attention(*given, is_causal=causal, enable_gqa=HEADS != OF_KEYS)


def rows(tokens: int, causal: bool, repeats: int) -> Iterator[Row]:
    """The figures of one length, forward and with the backward pass."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if ON_GPU else torch.float32
    shapes = ((1, HEADS, tokens, FEATURES), *[(1, OF_KEYS, tokens, FEATURES)] * 2)
    plain = [torch.randn(shape, device=WHERE, dtype=dtype).requires_grad_() for shape in shapes]
    grad = torch.randn(shapes[0], device=WHERE, dtype=dtype)

    def step(given: list[torch.Tensor], flow: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attended(given, causal), given, flow)

    def forward(given: list[torch.Tensor]) -> Callable[[], object]:
        detached = [x.detach() for x in given]
        return lambda: attended(detached, causal)

    once = {"forward": milliseconds(forward(plain), repeats), "both": milliseconds(step(plain, grad), repeats)}
    expected = attended(plain, causal).detach()

    def split(way: str, name: str, of: dict[str, float], time_of: Callable[..., float], repeats: int) -> Iterator[Row]:
        use_separate_memory(True)  # forgets how calls were computed before
        mesh = weft.make_mesh({"sp": 8})
        given = [weft.shard(x.detach(), mesh, P(None, None, "sp")).requires_grad_() for x in plain]
        flow = weft.shard(grad, mesh, P(None, None, "sp"))
        with weft.prefer(way):
            out = attended(given, causal).detach().full_tensor()
            error = float((out.float() - expected.float()).abs().max())
            for what, run in (("forward", forward(given)), ("both", step(given, flow))):
                yield Row(tokens, causal, name, what, of[what], time_of(run, repeats), error)

    for way in WAYS:
        yield from split(way, way, once, milliseconds, repeats)
    if ON_GPU:
        alone = {"forward": kernels(forward(plain), 3), "both": kernels(step(plain, grad), 3)}
        kinds = set(KINDS)
        KINDS.clear()  # devices compute as if each were a GPU
        yield from split("ring", "in turns", alone, kernels, 3)
        KINDS.update(kinds)
    use_separate_memory(False)


def main() -> None:
    """Measures, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    lengths = [256] if not ON_GPU else [8192] if options.quick else [8192, 32768, 131072]
    found: list[Row] = []
    backend = SDPBackend.FLASH_ATTENTION
    with sdpa_kernel(backend):
        for tokens in lengths:
            for causal in (True, False):
                for row in rows(tokens, causal, 3 if tokens > 100_000 else 10):
                    found.append(row)
                    print(f"{row.tokens:>7} {'causal' if row.causal else 'all':6} {row.way:12} {row.what:8} "
                          f"{row.once:9.2f} ms {row.split:9.2f} ms {row.ratio:5.2f} × (goal {GOAL}) error {row.error:.1e}", flush=True)  # fmt: skip
    machine = torch.cuda.get_device_name() if ON_GPU else "no GPU: the host was timed"
    print(f"torch {torch.__version__}, {machine}")
    if "OUT" in os.environ:
        kept = {"torch": torch.__version__, "machine": machine, "rows": [asdict(row) for row in found]}
        (Path(os.environ["OUT"]) / "attention.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
