"""Several launches that wait for each other on one GPU: the signal buffers at work, without a second GPU.

Each logical device gets a stream and a launch of its own, as it would on a GPU of its own. Run by `kernels.py` in a
process of its own: were the launches not to run at the same time, they would wait for minutes and then trap.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
# Streams that share a hardware queue could wait for one another.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch

from benchmarks.gpu.correctness import POISON
from weft.kernels import DeviceContext, DistributedAllReduce, DistributedBroadcast, signal_buffer

MIB = 1 << 20


def wrongs(count: int, size: int, times: int, in_place: bool) -> int:
    """How many elements were wrong in `times` all-reduces and broadcasts between `count` launches."""
    who = [DeviceContext("cuda:0", torch.cuda.Stream("cuda:0"), own_launch=True) for _ in range(count)]
    buffers = [signal_buffer("cuda:0") for _ in who]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(times):
        inputs = [torch.randn(size, device="cuda") for _ in who]
        total = inputs[0].clone()
        for x in inputs[1:]:
            total += x
        outputs = inputs if in_place else [torch.full((size,), float(POISON), device="cuda") for _ in who]
        given = inputs[turn % count].clone()
        torch.cuda.synchronize()
        DistributedAllReduce.execute(outputs, inputs, buffers, who)
        torch.cuda.synchronize()
        wrong += sum((output != total).sum() for output in outputs)
        torch.cuda.synchronize()
        DistributedBroadcast.execute(outputs, given, buffers, who)
        torch.cuda.synchronize()
        wrong += sum((output != given).sum() for output in outputs)
    return int(wrong)


def latency(count: int, size: int, times: int = 200) -> float:
    """Microseconds from the first launch's start to the last one's end, all-reduces back to back, no host in between."""
    who = [DeviceContext("cuda:0", torch.cuda.Stream("cuda:0"), own_launch=True) for _ in range(count)]
    buffers = [signal_buffer("cuda:0") for _ in who]
    inputs = [torch.randn(size, device="cuda") for _ in who]
    outputs = [torch.empty_like(x) for x in inputs]
    torch.cuda.synchronize()
    for _ in range(10):
        DistributedAllReduce.execute(outputs, inputs, buffers, who)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(who[0].stream)
    for _ in range(times):
        DistributedAllReduce.execute(outputs, inputs, buffers, who)
    end.record(who[0].stream)
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times * 1e3


def main() -> None:
    """Print what was found as JSON."""
    found: dict[str, object] = {}
    for count, size, times, in_place in (
        (2, 4096, 200, False),
        (8, 4096, 200, False),
        (8, 4096, 200, True),
        (4, MIB, 20, False),
    ):
        name = f"{count} launches × {size} floats{' in place' if in_place else ''}"
        found[name] = {"times": times, "wrong": wrongs(count, size, times, in_place)}
    found["us a call, host included, 8 × 16 KiB"] = round(latency(8, 4096), 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
