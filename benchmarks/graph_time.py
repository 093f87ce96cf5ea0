"""Compiled graphs beside eager tensors: 50 small ops on 8 CPU devices, and how long a graph of 1,000 ops takes to make.

    python benchmarks/section.py graphs

The limit is the same 50 ops on one plain torch tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from contest import Timing, contest
from figure import LIMIT, WEFT, Figure
from graph import MESH, OPS, build, chain

import weft
from weft import P
from weft import graph as wg


def figures(quick: bool) -> Iterator[int | Figure]:
    """Running, then building."""
    torch.set_num_threads(1)
    yield 4
    whole = torch.randn(16, 16)
    x = weft.shard(whole, MESH, P("d"))
    captured = wg.capture(chain, x)
    eager, fused = wg.compile(captured), wg.compile(captured, backend="inductor")
    contenders = {
        "tensors, eager": lambda: chain(x),
        "graph, eager backend": lambda: eager(x),
        "graph, inductor": lambda: fused(x),
        LIMIT: lambda: chain(whole),
    }
    for call in list(contenders.values())[1:3]:
        torch.testing.assert_close(call().full_tensor(), chain(whole))
    timings = contest(contenders, seconds=0.3 if quick else 2.0, repeat=3)
    base = timings["tensors, eager"]
    for name in list(contenders)[:3]:
        peers = {} if name == "tensors, eager" else {"Weft's eager tensors": base}
        yield Figure("graphs", f"{OPS} small ops: {name}", {WEFT: timings[name], LIMIT: timings[LIMIT], **peers}, 1024)
    together = [sum(build(1000)) for _ in range(2 if quick else 5)]
    yield Figure("graphs", "recording and compiling 1,000 ops", {WEFT: Timing.of(together)})
