"""Layout transitions and collectives on 8 CPU devices in one process: Weft, the physical limit, and JAX where it is installed.

    python benchmarks/in_process.py [--mib 64] [--json out.json]

The limit is the same reads and writes done by plain torch into memory that exists: `copy_` of the bytes that must be
written, or for pending sums the chunked adds. Weft runs twice: in one memory (the default, in which most movements copy
nothing), and with a separate memory for each device, as between GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import torch
from contest import Timing, contest

import weft
from weft import P
from weft.runtime import machine

GRID = weft.make_mesh({"dp": 2, "tp": 4})
LINE = weft.make_mesh({"d": 8})
SUM = {"d": weft.ReduceOp.SUM}
CASES: dict[str, tuple[weft.DeviceMesh, P, dict, P]] = {
    "S0→S1 over 8": (LINE, P("d"), {}, P(None, "d")),
    "(dp,tp)→(tp,dp)": (GRID, P("dp", "tp"), {}, P("tp", "dp")),
    "(dp,–)→(–,dp)": (GRID, P("dp"), {}, P(None, "dp")),
    "S0→R over 8": (LINE, P("d"), {}, P()),
    "(dp,tp)→R": (GRID, P("dp", "tp"), {}, P()),
    "R→S0 over 8": (LINE, P(), {}, P("d")),
    "P→R over 8": (LINE, P(), SUM, P()),
    "P→S0 over 8": (LINE, P(), SUM, P("d")),
}


def limit(shape: tuple[int, int], pending: bool) -> Callable[[], object]:
    """The same reads and writes by plain torch into memory that exists."""
    out = torch.zeros(shape)
    if not pending:
        source = torch.randn(shape)
        return lambda: out.copy_(source)
    parts = [torch.randn(shape) for _ in range(8)]
    rows = max(1, (1 << 18) // shape[1])

    def adds() -> None:
        for start in range(0, shape[0], rows):
            chunk = slice(start, start + rows)
            torch.add(parts[0][chunk], parts[1][chunk], out=out[chunk])
            for part in parts[2:]:
                out[chunk].add_(part[chunk])

    return adds


def weft_call(name: str, shape: tuple[int, int], separate: bool) -> Callable[[], object]:
    mesh, source, pending, target = CASES[name]
    machine.use_separate_memory(separate)
    mapping = weft.NamedMapping(mesh, source, unreduced=pending)
    if pending:
        x = weft.from_local([torch.randn(shape) for _ in range(8)], mapping)
    else:
        x = weft.shard(torch.randn(shape), mesh, mapping)

    def call() -> object:
        if machine.ownership.separate_memory != separate:
            machine.use_separate_memory(separate)
        return weft.shard(x, mesh, target)

    return call


def jax_calls(name: str, shape: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """The same transition by `device_put` and by a jitted identity; JAX has no pending sums outside of a jitted program."""
    try:
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
    except ImportError:
        return {}
    mesh, source, pending, target = CASES[name]
    grid = Mesh(np.array(jax.devices()[:8]).reshape(mesh.mesh_shape), mesh.axis_names)
    into = NamedSharding(grid, PartitionSpec(*target))
    if pending:
        stacked = jax.device_put(np.random.randn(8, *shape).astype(np.float32), NamedSharding(grid, PartitionSpec("d")))
        reduce = jax.jit(lambda a: a.sum(0), out_shardings=into)
        return {"jax jit": lambda: reduce(stacked).block_until_ready()}
    x = jax.device_put(np.random.randn(*shape).astype(np.float32), NamedSharding(grid, PartitionSpec(*source)))
    jitted = jax.jit(lambda a: a, out_shardings=into)
    return {
        "jax device_put": lambda: jax.device_put(x, into).block_until_ready(),
        "jax jit": lambda: jitted(x).block_until_ready(),
    }


def small_calls() -> dict[str, dict[str, Callable[[], object]]]:
    """1 KiB: what a call costs, apart from its bytes."""
    machine.use_separate_memory(False)
    x = weft.shard(torch.randn(8, 32), LINE, P("d"))
    y = weft.shard(torch.randn(8, 32), LINE, P("d"))
    pending = weft.from_local([torch.randn(8, 32) for _ in range(8)], weft.NamedMapping(LINE, P(), unreduced=["d"]))
    ones, others = list(torch.randn(8, 1, 32)), list(torch.randn(8, 1, 32))
    return {
        "x + y": {"weft": lambda: x + y, "eight plain adds": lambda: [a + b for a, b in zip(ones, others, strict=True)]},
        "shard": {"weft": lambda: weft.shard(x, LINE, P(None, "d"))},
        "all_reduce pending": {"weft": lambda: weft.all_reduce(pending)},
        "all_reduce split": {"weft": lambda: weft.all_reduce(x)},
        "reduce_scatter pending": {"weft": lambda: weft.reduce_scatter(pending, 0)},
    }


def main() -> None:
    """Runs the contests and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = options.mib * 64
    shape = (rows, 4096)
    results: dict[str, dict[str, Timing]] = {}
    for name in CASES:
        calls = {
            "weft": weft_call(name, shape, separate=False),
            "weft separate": weft_call(name, shape, separate=True),
            "limit": limit(shape, bool(CASES[name][2])),
            **jax_calls(name, shape),
        }
        results[f"{name}, {options.mib} MiB"] = contest(calls)
    for name, calls in small_calls().items():
        machine.use_separate_memory(False)
        results[f"{name}, 1 KiB"] = contest(calls, most=2000)
    for name, timings in results.items():
        shown = "  ".join(f"{who} {t.median * 1e3:.3f} ms" for who, t in timings.items())
        against = f"  weft/limit {timings['weft'].median / timings['limit'].median:.2f}" if "limit" in timings else ""
        print(f"{name:28} {shown}{against}")
    if options.json:
        options.json.write_text(json.dumps({n: {w: t.median for w, t in ts.items()} for n, ts in results.items()}, indent=1))


if __name__ == "__main__":
    main()
