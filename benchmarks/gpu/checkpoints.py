"""Times checkpoints of a state on one GPU: what a save takes of the program, and how fast files come back.

    python benchmarks/gpu/checkpoints.py                    # 1 GB, well below a minute
    python benchmarks/gpu/checkpoints.py --gigabytes 4 --repeats 5 --folder /dev/shm
    python benchmarks/gpu/checkpoints.py --only-loads --repeats 7

A state of float32 matrices lies on 8 logical devices with memories of their own. "blocked" is what `save(..., wait=False)` takes
of the program: the call, and until the GPU could go on with the next kernel; "and a step" is the call and a step that changes
all of the state, less that step alone. Both are compared with copies of the same shards to pinned memory that is there. The
first save takes pinned memory from the system, and is shown by itself. Prints each figure, the median of the repeats, when it
is known; with $OUT set, writes everything to $OUT/checkpoints.json.
"""
# ruff: noqa: E402 - what is imported lies beside this folder

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import mkdtemp

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("WEFT_VIRTUAL_ACCELERATORS", "8")

import torch

import weft
from weft import NamedMapping, P
from weft.runtime.machine import use_separate_memory

ROWS, COLUMNS = 8192, 2048  # 67 MB of float32
GOAL = 1.2
ON_GPU = torch.cuda.is_available()


def until_idle(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds until a call has returned, and until the GPU has done what it asked for."""
    settle()
    begin = time.perf_counter()
    run()
    returned = time.perf_counter() - begin
    settle()
    return returned, time.perf_counter() - begin


def settle() -> None:
    """Waits until the GPU has done all it was asked for."""
    if ON_GPU:
        torch.cuda.synchronize()


class Figures:
    """Seconds by name, printed as they come."""

    def __init__(self, size: int) -> None:
        self.size, self.seconds = size, dict[str, float]()

    def add(self, name: str, turns: Iterable[float]) -> None:
        """The median of some turns."""
        seconds = self.seconds[name] = statistics.median(turns)
        print(f"{name:34} {seconds:8.3f} s {self.size / seconds / 1e9:7.2f} GB/s", flush=True)


def measure_saves(found: Figures, state: dict[str, torch.Tensor], folder: Path, repeats: int) -> None:
    """What a save takes of the program."""
    room = {
        name: [torch.empty(shard.shape, device="cpu", pin_memory=ON_GPU) for shard in x.local_shards]
        for name, x in state.items()
    }

    def copied() -> None:
        for name, x in state.items():
            for into, shard in zip(room[name], x.local_shards, strict=True):
                into.copy_(shard, non_blocking=True)

    def step() -> None:
        for x in state.values():
            x.add_(0)

    def background(also: Callable[[], None] = lambda: None) -> tuple[float, float, float]:
        handles: list[weft.checkpoint.Saving] = []

        def run() -> None:
            handles.append(weft.checkpoint.save(state, folder / "weft", wait=False))
            also()

        returned, blocked = until_idle(run)
        begin = time.perf_counter()
        handles[0].wait()
        return returned, blocked, blocked + time.perf_counter() - begin

    weft.checkpoint.save({"x": torch.zeros(1)}, folder / "small")  # all is imported
    found.add("first save: blocked", [background()[1]])
    found.add("copy", (until_idle(copied)[1] for _ in range(repeats)))
    turns = [background() for _ in range(repeats)]
    for i, name in enumerate(("the call", "blocked", "complete")):
        found.add(f"save, wait=False: {name}", (turn[i] for turn in turns))
    step()
    pairs = [(until_idle(step)[1], background(step)[1]) for _ in range(repeats)]
    found.add("save, wait=False: and a step", (both - alone for alone, both in pairs))
    found.add("save", (until_idle(lambda: weft.checkpoint.save(state, folder / "weft"))[1] for _ in range(repeats)))


def measure_loads(found: Figures, state: dict[str, torch.Tensor], folder: Path, repeats: int) -> None:
    """How fast files come back, compared with their checksums and not."""
    mesh = next(iter(state.values())).mesh

    def loaded(verify: bool, spec: P) -> Callable[[], object]:
        like = dict.fromkeys(state, NamedMapping(mesh, spec))
        return lambda: weft.checkpoint.load(folder / "weft", like, verify=verify)

    for spec, how in ((P("x"), "split alike"), (P(None, "x"), "split by columns")):
        ways = {f"load, {how}": loaded(True, spec), f"load, {how}, unchecked": loaded(False, spec)}
        for way in ways.values():
            way()
        took = [{name: until_idle(way)[1] for name, way in ways.items()} for _ in range(2 * repeats + 1)]
        for name in ways:
            found.add(name, (turn[name] for turn in took))
        checked, unchecked = ways
        ratio = statistics.median(turn[checked] / turn[unchecked] for turn in took)
        print(f"{checked}: {ratio:.2f} × unchecked (goal {1 / 0.9:.2f})", flush=True)


def main() -> None:
    """Measures, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0 if ON_GPU else 0.1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--only-loads", action="store_true", help="measure loads, and no saves")
    options = parser.parse_args()
    use_separate_memory(True)
    mesh = weft.make_mesh({"x": 8})
    count = max(1, round(options.gigabytes * 1e9 / (ROWS * COLUMNS * 4)))
    state = {f"matrix{i}": weft.shard(torch.full((ROWS, COLUMNS), float(i)), mesh, P("x")) for i in range(count)}
    size = count * ROWS * COLUMNS * 4
    folder = Path(mkdtemp(dir=options.folder))
    machine = torch.cuda.get_device_name() if ON_GPU else "no GPU: the host is timed"
    print(f"{size / 1e9:.2f} GB in {folder.parent}, torch {torch.__version__}, {machine}", flush=True)
    found = Figures(size)
    try:
        if options.only_loads:
            weft.checkpoint.save(state, folder / "weft")
        else:
            measure_saves(found, state, folder, options.repeats)
        measure_loads(found, state, folder, options.repeats)
        again = weft.checkpoint.load(folder / "weft", dict.fromkeys(state, NamedMapping(mesh, P(None, "x"))))
        assert all(bool((x == i).all()) for i, x in enumerate(again.values())), "other values came back"
    finally:
        shutil.rmtree(folder)
    ratios = {
        case: found.seconds[f"save, wait=False: {case}"] / found.seconds["copy"]
        for case in ("blocked", "and a step")
        if "copy" in found.seconds
    }
    for case, ratio in ratios.items():
        print(f"{case}: {ratio:.2f} × the copy (goal {GOAL})")
    if "OUT" in os.environ:
        kept = {"torch": torch.__version__, "machine": machine, "bytes": size, **ratios, "seconds": found.seconds}
        (Path(os.environ["OUT"]) / "checkpoints.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
