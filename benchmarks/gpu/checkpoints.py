"""Times checkpoints of a state on one GPU: what a save takes of the program, and how fast files come back.

    python benchmarks/gpu/checkpoints.py                    # 4 GB, about a minute
    python benchmarks/gpu/checkpoints.py --gigabytes 0.4 --folder /dev/shm

A state of float32 matrices lies on 8 logical devices with memories of their own. "blocked" is what `save(..., wait=False)` takes
of the program: the call, and until the GPU could go on with the next kernel. It is compared with copies of the same shards to
pinned memory that is there. The first save takes pinned memory from the system, and is shown by itself. Prints a table last;
with $OUT set, writes everything to $OUT/checkpoints.json.
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
from collections.abc import Callable
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


def measured(state: dict[str, torch.Tensor], folder: Path, repeats: int) -> dict[str, float]:
    """The figures, in seconds."""
    room = {
        name: [torch.empty(shard.shape, device="cpu", pin_memory=ON_GPU) for shard in x.local_shards]
        for name, x in state.items()
    }
    mesh = next(iter(state.values())).mesh
    found: dict[str, float] = {}

    def copied() -> None:
        for name, x in state.items():
            for into, shard in zip(room[name], x.local_shards, strict=True):
                into.copy_(shard, non_blocking=True)

    def background() -> tuple[float, float, float]:
        handles: list[weft.checkpoint.Saving] = []
        returned, blocked = until_idle(lambda: handles.append(weft.checkpoint.save(state, folder / "weft", wait=False)))
        begin = time.perf_counter()
        handles[0].wait()
        return returned, blocked, blocked + time.perf_counter() - begin

    def loaded(verify: bool, spec: P) -> Callable[[], object]:
        like = dict.fromkeys(state, NamedMapping(mesh, spec))
        return lambda: weft.checkpoint.load(folder / "weft", like, verify=verify)

    weft.checkpoint.save({"x": torch.zeros(1)}, folder / "small")  # all is imported
    found["first save: blocked"] = background()[1]
    turns = [(until_idle(copied)[1], *background()) for _ in range(repeats)]
    for i, name in enumerate(
        ("copy", "save, wait=False: the call", "save, wait=False: blocked", "save, wait=False: complete")
    ):
        found[name] = statistics.median(turn[i] for turn in turns)
    found["save"] = statistics.median(
        until_idle(lambda: weft.checkpoint.save(state, folder / "weft"))[1] for _ in range(repeats)
    )
    for spec, how in ((P("x"), "split alike"), (P(None, "x"), "split by columns")):
        for verify in (True, False):
            name = f"load, {how}" + ("" if verify else ", unchecked")
            found[name] = statistics.median(until_idle(loaded(verify, spec))[1] for _ in range(repeats))
    return found


def main() -> None:
    """Measures, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0 if ON_GPU else 0.1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    use_separate_memory(True)
    mesh = weft.make_mesh({"x": 8})
    count = max(1, round(options.gigabytes * 1e9 / (ROWS * COLUMNS * 4)))
    state = {f"matrix{i}": weft.shard(torch.full((ROWS, COLUMNS), float(i)), mesh, P("x")) for i in range(count)}
    size = count * ROWS * COLUMNS * 4
    folder = Path(mkdtemp(dir=options.folder))
    try:
        found = measured(state, folder, options.repeats)
        again = weft.checkpoint.load(folder / "weft", dict.fromkeys(state, NamedMapping(mesh, P(None, "x"))))
        assert all(bool((x == i).all()) for i, x in enumerate(again.values())), "other values came back"
    finally:
        shutil.rmtree(folder)
    for name, seconds in found.items():
        print(f"{name:32} {seconds:8.3f} s {size / seconds / 1e9:7.2f} GB/s")
    ratio = found["save, wait=False: blocked"] / found["copy"]
    print(f"blocked {ratio:.2f} × the copy (goal {GOAL})")
    machine = torch.cuda.get_device_name() if ON_GPU else "no GPU: the host was timed"
    print(f"{size / 1e9:.2f} GB in {folder.parent}, torch {torch.__version__}, {machine}")
    if "OUT" in os.environ:
        kept = {"torch": torch.__version__, "machine": machine, "bytes": size, "blocked": ratio, "seconds": found}
        (Path(os.environ["OUT"]) / "checkpoints.json").write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
