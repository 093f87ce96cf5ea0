"""What a call costs apart from its bytes: 1 KiB on 8 CPU devices, beside the eight plain ops and beside DTensor.

    python benchmarks/section.py ops

DTensor runs in one process on a mesh of one device: what it does there for an op is what each process does for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import torch
from contest import contest
from figure import LIMIT, PLAIN, SEPARATE, WEFT, Figure
from in_process import APART, DEVICES, LINE, apart
from peers import dtensor, jax_movements

import weft
from weft import CPU, P
from weft.inspect.transitions import line_of

OPS: dict[str, Callable[..., torch.Tensor]] = {
    "x + y": lambda x, y: x + y,
    "relu(x)": lambda x, _: torch.relu(x),
    "x * 2": lambda x, _: x * 2,
    "x @ w": lambda x, y: x @ y,
    "softmax(x)": lambda x, _: x.softmax(-1),
    "x.sum()": lambda x, _: x.sum(),
}
"""The op; the second input is a square matrix that every device has, where it is multiplied, else lies like the first."""

CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shard, known": lambda x: weft.shard(x, x.mesh, P(None, "d")),
    "all_reduce, split": weft.all_reduce,
    "reduce_scatter, split": lambda x: weft.reduce_scatter(x, 0),
    "all_reduce, pending": weft.all_reduce,
    "reduce_scatter, pending": lambda x: weft.reduce_scatter(x, 0),
}


def ops(quick: bool) -> Iterator[int | Figure]:
    """Single ops, then communication calls."""
    torch.set_num_threads(1)  # no op here is large enough for two
    yield len(OPS) + len(CALLS)
    pace = {"seconds": 0.15 if quick else 0.6, "most": 200, "warm": 20, "repeat": 20}
    for name in OPS:
        yield Figure("ops", name, contest(contenders(name), **pace), 1024)
    for name in CALLS:
        both = {WEFT: calling(name, DEVICES), SEPARATE: apart(lambda name=name: calling(name, APART))}
        yield Figure("ops", name, contest(both, **pace), 1024)


def contenders(name: str) -> dict[str, Callable[[], object]]:
    """The op on a tensor of 8 shards, on each of the shards, and by the peers."""
    op, square = OPS[name], name == "x @ w"
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    ones, others = list(x.clone().chunk(8)), [y] * 8 if square else list(y.clone().chunk(8))

    def computing(devices: Sequence[CPU]) -> Callable[[], object]:
        mesh = line_of(devices)
        one, other = weft.shard(x, mesh, P("d")), weft.shard(y, mesh, P() if square else P("d"))
        return lambda: op(one, other)

    return {
        WEFT: computing(DEVICES),
        SEPARATE: apart(lambda: computing(APART)),
        LIMIT: lambda: [op(a, b) for a, b in zip(ones, others, strict=True)],
        PLAIN: lambda: op(x, y),
        **dtensor.op(op, x, y),
        **jax_movements.op(name, LINE),
    }


def calling(name: str, devices: Sequence[CPU]) -> Callable[[], object]:
    """A communication call on 1 KiB, all of it split or all of it pending on each device."""
    mesh, call = line_of(devices), CALLS[name]
    if name.endswith("pending"):
        x = weft.from_local([torch.randn(8, 32)] * 8, weft.NamedMapping(mesh, P(), unreduced=["d"]))
    else:
        x = weft.shard(torch.randn(64, 4), mesh, P("d"))
    return lambda: call(x)
