"""Checks and times `weft.kernels` on one GPU with 8 logical devices.

    python benchmarks/gpu/kernels.py            # everything, about two minutes
    python benchmarks/gpu/kernels.py --sweep    # and look for better tilings
    compute-sanitizer python benchmarks/gpu/kernels.py --tiny

Prints a table last; with $OUT set, writes everything to $OUT/kernels.json.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch
import triton

import weft.kernels.launch
from benchmarks.gpu.correctness import movements, reductions, repeated, setting
from benchmarks.gpu.measure import GIB, MIB, Time, copy_bandwidth, timed
from weft.kernels import (
    DistributedAllGather,
    DistributedAllReduce,
    DistributedAllToAll,
    DistributedBroadcast,
    DistributedReduceScatter,
)
from weft.kernels.tiling import Tiling

COUNT = 8
COPY: dict[str, float] = {}
REPORT: dict[str, object] = {}
ROWS: list[tuple[str, str, str, str, str, str]] = []


def machine() -> dict[str, str]:
    """What the figures are of."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


def floats(size: int, count: int = COUNT) -> list[torch.Tensor]:
    """Random tensors of `size` bytes."""
    return [torch.randn(size // 4, device="cuda") for _ in range(count)]


def row(name: str, ours: Time, moved: int, torchs: Time | None, goal: float | None) -> None:
    """Note a line of the table: time, bandwidth, share of the ceiling, torch's time, and whether the goal is met."""
    share = ours.rate(moved) / max(COPY.values())
    ROWS.append(
        (
            name,
            f"{ours.median:.3f} ms",
            f"{ours.rate(moved):.2f} TB/s",
            f"{share:.1%}",
            "" if torchs is None else f"{torchs.median:.3f} ms",
            "" if goal is None else f"≥ {goal:.0%}: {'met' if share >= goal else 'MISSED'}",
        )
    )
    REPORT[name] = {
        "ms": [ours.median, ours.least, ours.most],
        "bytes": moved,
        "share of copy": share,
        "torch ms": None if torchs is None else torchs.median,
    }


def time_broadcast() -> None:
    """1 GiB read once, written 8 times."""
    buffers, who = setting(COUNT)
    source = floats(GIB, 1)[0]
    outputs = [torch.empty_like(source) for _ in who]
    ours = timed(lambda: DistributedBroadcast.execute(outputs, source, buffers, who))
    torchs = timed(lambda: [output.copy_(source) for output in outputs])
    row("broadcast 8 × 1 GiB", ours, 9 * GIB, torchs, 0.9)


def time_all_reduce() -> None:
    """8 × 128 MiB read once and written once, against torch's chain of adds and copies."""
    buffers, who = setting(COUNT)
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [x.to(dtype) for x in floats(128 * MIB * 4 // dtype.itemsize)]
        outputs = [torch.empty_like(x) for x in inputs]

        def chain(inputs: list[torch.Tensor] = inputs, outputs: list[torch.Tensor] = outputs) -> None:
            torch.add(inputs[0], inputs[1], out=outputs[0])
            for x in inputs[2:]:
                outputs[0].add_(x)
            for output in outputs[1:]:
                output.copy_(outputs[0])

        ours = timed(lambda i=inputs, o=outputs: DistributedAllReduce.execute(o, i, buffers, who))
        name = f"all-reduce 8 × 128 MiB {str(dtype).removeprefix('torch.')}"
        row(name, ours, 16 * 128 * MIB, timed(chain), 1 / 1.15)
    one = [outputs[0]] * COUNT
    ours = timed(lambda: DistributedAllReduce.execute(one, inputs, buffers, who))
    row("all-reduce 8 × 128 MiB bfloat16, one output", ours, 9 * 128 * MIB, None, None)


def time_others() -> None:
    """All-gather, reduce-scatter and all-to-all of 8 × 128 MiB."""
    buffers, who = setting(COUNT)
    inputs = floats(128 * MIB)
    outputs = [torch.empty(inputs[0].numel() * COUNT, device="cuda") for _ in who]
    ours = timed(lambda: DistributedAllGather.execute(outputs, inputs, buffers, who))
    torchs = timed(lambda: [torch.cat(inputs, out=output) for output in outputs])
    row("all-gather 8 × 128 MiB", ours, 9 * GIB, torchs, None)
    parts = [torch.empty(inputs[0].numel() // COUNT, device="cuda") for _ in who]
    ours = timed(lambda: DistributedReduceScatter.execute(parts, inputs, buffers, who))
    row("reduce-scatter 8 × 128 MiB", ours, GIB + 128 * MIB, None, None)
    outputs = [torch.empty_like(x) for x in inputs]
    ours = timed(lambda: DistributedAllToAll.execute(outputs, inputs, buffers, who))
    row("all-to-all 8 × 128 MiB", ours, 2 * GIB, None, None)


def time_small() -> None:
    """16 KiB on each of 8 devices: device time in a graph of 100 launches, and the host's part of a call."""
    buffers, who = setting(COUNT)
    inputs = floats(16 * 1024)
    outputs = [torch.empty_like(x) for x in inputs]

    def run() -> None:
        DistributedAllReduce.execute(outputs, inputs, buffers, who)

    device = timed(run, times=100).median * 1e3
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(1000):
        run()
    host = (time.perf_counter() - begin) * 1e3
    torch.cuda.synchronize()
    met = "met" if device <= 15 else "MISSED"
    ROWS.append(("all-reduce 8 × 16 KiB", f"{device:.2f} µs", "", f"host {host:.0f} µs", "", f"≤ 15 µs: {met}"))
    REPORT["all-reduce 8 × 16 KiB"] = {"device us": device, "host us": host}


def count_launches() -> None:
    """How many kernels, copies and fills one all-reduce between 8 devices puts on the GPU, and how long they take."""
    buffers, who = setting(COUNT)
    inputs = floats(16 * 1024)
    outputs = [torch.empty_like(x) for x in inputs]
    DistributedAllReduce.execute(outputs, inputs, buffers, who)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        DistributedAllReduce.execute(outputs, inputs, buffers, who)
        torch.cuda.synchronize()
    found = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    REPORT["launches of one all-reduce"] = [(event.name, event.time_range.elapsed_us()) for event in found]
    met = "met" if len(found) == 1 else "MISSED"
    ROWS.append(("launches of one all-reduce", str(len(found)), "", "", "", f"1: {met}"))


def check(name: str, wrongs: list[str]) -> None:
    """Note whether a family of checks found something wrong."""
    REPORT[name] = wrongs or "right"
    ROWS.append((name, "", "", "", "", "right" if not wrongs else f"WRONG: {len(wrongs)}, first: {wrongs[0]}"))


def sweep() -> None:
    """Time broadcast and all-reduce with other tilings, best first."""
    usual = weft.kernels.launch.tiling
    buffers, who = setting(COUNT)
    source, inputs = floats(GIB, 1)[0], floats(128 * MIB)
    outputs = [torch.empty_like(source) for _ in who]
    sums = [torch.empty_like(x) for x in inputs]
    runs: dict[str, tuple[int, Callable[[], None]]] = {
        "broadcast": (9 * GIB, lambda: DistributedBroadcast.execute(outputs, source, buffers, who)),
        "all-reduce": (2 * GIB, lambda: DistributedAllReduce.execute(sums, inputs, buffers, who)),
    }
    for name, (moved, run) in runs.items():
        found = []
        for block, warps, policy in itertools.product(
            (2048, 4096, 8192, 16384, 32768), (4, 8, 16), ("", "evict_first")
        ):
            if not 512 * warps <= block <= 4096 * warps:
                continue
            tile = Tiling(block, warps, policy)
            weft.kernels.launch.tiling = lambda _mode, _largest, tile=tile: tile
            found.append((timed(run, repeats=9).rate(moved), str(tile)))
        weft.kernels.launch.tiling = usual
        found.sort(reverse=True)
        REPORT[f"sweep {name}"] = found
        print(f"{name} by tiling, TB/s:", *(f"  {rate:.3f} {tile}" for rate, tile in found), sep="\n")


def other(script: str, limit: int) -> None:
    """Run a script of this folder in a process of its own and note what it prints."""
    try:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script))],
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        REPORT[script] = f"did not end in {limit} s"
    else:
        last = done.stdout.strip().splitlines()[-1:]
        REPORT[script] = json.loads(last[0]) if done.returncode == 0 and last else f"failed: {done.stderr[-1500:]}"
    print(script, json.dumps(REPORT[script], indent=1, ensure_ascii=False))


def attempt(name: str, part: Callable[[], object]) -> None:
    """Run one part; if it fails, say so and let the others run."""
    begin = time.perf_counter()
    try:
        part()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a report of what failed is what this script is for
        traceback.print_exc()
        REPORT[f"{name} failed"] = repr(error)
        ROWS.append((name, "", "", "", "", f"FAILED: {type(error).__name__}"))
    torch.cuda.empty_cache()
    print(f"[{name}: {time.perf_counter() - begin:.1f} s]", flush=True)


def table() -> str:
    """The rows as a table."""
    head = ("what", "time", "bandwidth", "of copy", "torch", "goal")
    rows = [head, *ROWS]
    widths = [max(len(line[i]) for line in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in rows)


def main() -> int:
    """Run the parts that were asked for; 1 if one failed or a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a few small checks, for compute-sanitizer")
    parser.add_argument("--sweep", action="store_true", help="also try other tilings")
    parser.add_argument(
        "--no-peers", action="store_true", help="leave out JAX and the launches that wait for each other"
    )
    asked = parser.parse_args()
    torch.manual_seed(time.time_ns() % 2**31)
    REPORT.update({"machine": machine(), "copy bandwidth TB/s": COPY})
    if asked.tiny:
        attempt("movements", lambda: check("movements", list(movements((5, 5000)))))
        attempt("reductions", lambda: check("reductions", list(reductions((5, 5000), every_kind=False))))
        attempt("repeated", lambda: check("repeated", list(repeated(5))))
    else:
        attempt("copy", lambda: COPY.update(copy_bandwidth()))
        attempt("broadcast", time_broadcast)
        attempt("all-reduce", time_all_reduce)
        attempt("others", time_others)
        attempt("small", time_small)
        attempt("launches", count_launches)
        if asked.sweep:
            attempt("sweep", sweep)
        if not asked.no_peers:
            attempt("apart", lambda: other("apart.py", 60))
            attempt("jax", lambda: other("jax_peer.py", 90))
        attempt("movements", lambda: check("movements are exact", list(movements())))
        attempt("reductions", lambda: check("reductions are right", list(reductions())))
        attempt("repeated", lambda: check("1,000 repetitions, poisoned outputs", list(repeated())))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "kernels.json").write_text(
            json.dumps(REPORT, indent=1, ensure_ascii=False, default=str)
        )
    print(json.dumps(REPORT["machine"]), "copy, TB/s:", json.dumps(COPY))
    print(table())
    return int(any("FAILED" in line[-1] or "WRONG" in line[-1] for line in ROWS))


if __name__ == "__main__":
    sys.exit(main())
