"""Graphs: 50 small ops on 8 CPU devices, eager against compiled; and how long building a large graph takes.

    python benchmarks/graph.py [--json out.json]

The same 50 elementwise ops on a tensor split over 8 devices: eager `weft.Tensor`s; the captured graph with the eager
backend and with inductor; the same ops on one plain torch tensor, which is what the machine can do. Then the ops written
device by device with `weft.graph.ops`, where every device computes its own shard.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from contest import contest

import weft
from weft import P
from weft import graph as wg
from weft.graph import DeviceRef, Graph, TensorType, ops

MESH = weft.make_mesh({"d": 8}, devices=[weft.CPU(i) for i in range(8)])
OPS = 50


def chain(x: torch.Tensor) -> torch.Tensor:
    """Fifty small ops."""
    for _ in range(OPS // 5):
        x = torch.relu(x * 1.01 + 0.1) - x.abs()
    return x


def device_by_device() -> wg.Model:
    """The same ops, 8 times 50 of them, each device on its own shard."""
    kinds = [TensorType("float32", [2, 16], DeviceRef.CPU(i)) for i in range(8)]
    with Graph("shards", input_types=kinds) as graph:
        results = []
        for value in graph.inputs:
            for _ in range(OPS // 5):
                value = ops.relu(value * 1.01 + 0.1) - abs(value)
            results.append(value)
        graph.output(*results)
    return wg.compile(graph)


def build(count: int) -> tuple[float, float, float]:
    """Seconds to record and to compile a graph of so many ops, and then to record its gradients."""
    start = time.perf_counter()
    with Graph("large", input_types=[TensorType("float32", ["batch", 64]), TensorType("float32", [64, 64])]) as graph:
        x, w = graph.inputs
        for _ in range(count // 4):
            x = x + ops.relu(x @ w) * 0.5
        graph.output(x)
    recorded = time.perf_counter()
    wg.compile(graph)
    compiled = time.perf_counter()
    wg.grad(graph, seed=x)
    return recorded - start, compiled - recorded, time.perf_counter() - compiled


def main() -> None:
    """Measure, print, and write down what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    whole = torch.randn(16, 16)
    x = weft.shard(whole, MESH, P("d"))
    captured = wg.capture(chain, x)
    eager, fused = wg.compile(captured), wg.compile(captured, backend="inductor")
    shards, pieces = device_by_device(), list(whole.split(2))
    contenders: dict[str, Callable[[], object]] = {
        "eager weft.Tensor": lambda: chain(x),
        "graph, eager backend": lambda: eager(x),
        "graph, inductor": lambda: fused(x),
        "graph, device by device (400 ops)": lambda: shards(*pieces),
        "plain torch, one tensor": lambda: chain(whole),
    }
    torch.testing.assert_close(eager(x).full_tensor(), chain(whole))
    torch.testing.assert_close(fused(x).full_tensor(), chain(whole))
    timings = contest(contenders, seconds=2.0)
    base = timings["eager weft.Tensor"].median
    print(f"{OPS} small ops on a 16 × 16 tensor split over 8 CPU devices")
    for name, timing in timings.items():
        print(f"  {name:34} {timing.median * 1e6:8.0f} µs   {base / timing.median:5.1f} × eager")
    recorded, compiled, differentiated = min((build(1000) for _ in range(3)), key=sum)
    print(
        f"1,000 ops: {recorded * 1e3:.0f} ms to record, {compiled * 1e3:.0f} ms to compile (eager backend), "
        f"{differentiated * 1e3:.0f} ms to differentiate"
    )
    if arguments.json:
        seconds = {name: timing.median for name, timing in timings.items()}
        large = {"record 1000": recorded, "compile 1000": compiled, "differentiate 1000": differentiated}
        arguments.json.write_text(json.dumps({**seconds, **large}, indent=1))


if __name__ == "__main__":
    main()
