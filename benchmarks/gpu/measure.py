"""Timing on the device: events around replays of a captured graph, medians, and the bandwidth of a plain copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Time:
    """Milliseconds: the median of some runs, the quickest and the slowest."""

    median: float
    least: float
    most: float

    def rate(self, moved: int) -> float:
        """TB/s if a run moves `moved` bytes."""
        return moved / self.median / 1e9


def captured(run: Callable[[], object], times: int = 1) -> Callable[[], object]:
    """`run`, `times` in a row, as one CUDA graph, so that the host's part is not measured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            run()
    return graph.replay


def timed(run: Callable[[], object], repeats: int = 15, times: int = 1) -> Time:
    """The time of one `run`, over replays of a graph that holds `times` of it."""
    replay = captured(run, times)
    for _ in range(3):
        replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        replay()
        end.record()
    torch.cuda.synchronize()
    taken = sorted(begin.elapsed_time(end) / times for begin, end in events)
    return Time(statistics.median(taken), taken[0], taken[-1])


def copy_bandwidth() -> dict[str, float]:
    """TB/s, bytes read plus bytes written, of torch's copy between two buffers, for several sizes."""
    found = {}
    for size in (128 * MIB, GIB, 4 * GIB):
        source = torch.randint(-(2**31), 2**31 - 1, (size // 4,), dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        found[f"{size // MIB} MiB"] = timed(lambda s=source, t=target: t.copy_(s)).rate(2 * size)
        del source, target
    return found
