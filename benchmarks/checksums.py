"""What checksums cost a load of files that are in the system's memory, and what they cost whoever writes the same loop by hand.

    python benchmarks/checksums.py                        4 Gloo processes, 1 GB, 15 turns
    python benchmarks/checksums.py --processes 1 --devices 8
    python benchmarks/checksums.py --megabytes 4030 --only "split alike"

Loads that compare with checksums and loads that do not take turns, into tensors that are there, or into new ones. "by
hand" is the least that a program can do: each process reads, block by block, the bytes that are split alike as they were
saved, in as many threads as a load has, and takes the checksum of each block or does not; nothing is planned, compared or
agreed upon. A turn takes as long as its slowest process; the medians of the turns count, and the median of what one way takes
as a multiple of the other in each turn. Beside it are the processors' seconds of all processes together, which other work
changes less.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from xxhash import xxh3_64_hexdigest

import weft
from benchmarks.checkpoints import COLUMNS, ROWS, launch, of_all, sharded, slowest
from weft import NamedMapping, P
from weft.checkpoint.files.checksums import BLOCK
from weft.checkpoint.files.opening import index_at
from weft.checkpoint.memory import writable_bytes
from weft.checkpoint.reading import Reader
from weft.runtime.machine import use_separate_memory

Way = Callable[[bool], object]
GOAL = 1 / 0.9


def ways(folder: Path, count: int, mesh: weft.DeviceMesh) -> Iterator[tuple[str, Way]]:
    """Loads that compare, or do not, and the loop by hand."""
    alike, columns = sharded(count, mesh, P("x")), sharded(count, mesh, P(None, "x"))
    fresh = dict.fromkeys((name for name, _ in alike.named_parameters()), NamedMapping(mesh, P("x")))
    yield "split alike", lambda verify: weft.checkpoint.load(folder, alike, verify=verify)
    yield "split by columns", lambda verify: weft.checkpoint.load(folder, columns, verify=verify)
    yield "split alike, new tensors", lambda verify: weft.checkpoint.load(folder, fresh, verify=verify)
    yield "by hand, split alike", by_hand(folder, alike)


def by_hand(folder: Path, model: torch.nn.Module) -> Way:
    """Reads what this process holds, in blocks, and takes their checksums or does not."""
    index = index_at(folder)
    reader = Reader(folder, index)
    for name, x in model.named_parameters():
        reader.into(name, x)
    files = {name: os.open(folder / name, os.O_RDONLY) for name in index.files}
    wanted = [(files[shard.file], shard, box, target) for shard, box, target in reader.wanted()]
    blocks: list[tuple[int, int, memoryview]] = []
    for file, shard, box, target in wanted:
        begin = shard.start + box[0][0] * COLUMNS * 4
        into = writable_bytes(target)
        blocks += [(file, begin + at, into[at : at + BLOCK]) for at in range(0, len(into), BLOCK)]
    threads = min(4, os.cpu_count() or 1)

    def read(verify: bool, part: list[tuple[int, int, memoryview]]) -> None:
        for file, at, into in part:
            assert os.preadv(file, [into], at) == len(into)
            if verify:
                xxh3_64_hexdigest(into)

    def run(verify: bool) -> None:
        step = -(-len(blocks) // threads)
        with ThreadPoolExecutor(threads) as pool:
            parts = [blocks[at : at + step] for at in range(0, len(blocks), step)]
            list(pool.map(lambda part: read(verify, part), parts))

    return run


def timed(way: Way, verify: bool) -> tuple[float, float]:
    """The seconds of the slowest process, and the processors' seconds of all."""
    gc.collect()
    if dist.is_initialized():
        dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    way(verify)
    took, busy = time.perf_counter() - start, time.process_time() - busy
    return (slowest(took), of_all(busy, dist.ReduceOp.SUM)) if dist.is_initialized() else (took, busy)


def measure(folder: Path, count: int, arguments: argparse.Namespace) -> None:
    """All cases, in one of the processes; the first prints."""
    if arguments.processes > 1:
        weft.distributed.init()
    first = weft.distributed.process_index() == 0
    use_separate_memory(True)
    mesh = weft.make_mesh({"x": arguments.processes * arguments.devices})
    weft.checkpoint.save(sharded(count, mesh, P("x")), folder)
    for case, way in ways(folder, count, mesh):
        if arguments.only not in case:
            continue
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for turn in range(arguments.turns + 1):
            for verify in (True, False) if turn % 2 else (False, True):
                times = timed(way, verify)
                if turn:
                    found[verify].append(times)
        if first:
            print(line(case, found[True], found[False]), flush=True)


def line(case: str, checked: list[tuple[float, float]], unchecked: list[tuple[float, float]]) -> str:
    """What one case took, with and without."""
    texts = []
    for i, what in enumerate(("seconds", "processors'")):
        pairs = [(one[i], other[i]) for one, other in zip(checked, unchecked, strict=True)]
        ratio = statistics.median(one / other for one, other in pairs)
        one, other = (statistics.median(each) for each in zip(*pairs, strict=True))
        texts.append(f"{what} {one:6.3f} and {other:6.3f} unchecked, {ratio:.2f} x")
    return f"{case:<22} {'   '.join(texts)}"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--megabytes", type=float, default=1007)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    count = max(1, round(arguments.megabytes * 1e6 / (ROWS * COLUMNS * 4)))
    if "RANK" in os.environ or arguments.processes == 1:
        folder = arguments.folder if "RANK" in os.environ else Path(mkdtemp(dir=arguments.folder))
        try:
            measure(folder, count, arguments)
        finally:
            if "RANK" not in os.environ:
                shutil.rmtree(folder)
        return
    folder = Path(mkdtemp(dir=arguments.folder))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(
        f"{arguments.processes} processes, {count * ROWS * COLUMNS * 4 / 1e6:.0f} MB, load averages {load}", flush=True
    )
    try:
        launch(arguments.processes, [*sys.argv[1:], "--folder", str(folder)], __file__)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
