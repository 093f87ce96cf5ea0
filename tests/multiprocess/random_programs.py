"""Runs random programs, and those known to have been hard, in several processes, each of which compares what it sees with plain torch.

    python tests/multiprocess/random_programs.py --processes 4 --seeds 0 100

Started by a launcher, it is one of these processes; it ends with the first program that gives something else.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import weft
from tests.multiprocess.launching import Ended, Processes
from tests.tensor import program_words
from tests.tensor.known_programs import KNOWN
from tests.tensor.program_making import make_program
from tests.tensor.programs import difference
from tests.tensor.view_making import make_chain
from weft.engine.views.copy_views import is_copy


class Copies:
    """What `pickle` means in these programs: a process does not pickle a tensor of which it has a part."""

    @staticmethod
    def dumps(x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone().requires_grad_(x.requires_grad)

    @staticmethod
    def loads(x: torch.Tensor) -> torch.Tensor:
        return x


def work(first: int, last: int, devices_per_process: int) -> int:
    """What each process does."""
    setattr(program_words, "pickle", Copies)  # noqa: B010 - it is the module's own import
    weft.distributed.init(backend="gloo", timeout=60, devices_per_process=devices_per_process)
    count = weft.distributed.process_count() * devices_per_process
    # One process keeps a view that is a copy, and others do not: what they communicate does not depend on that.
    kept = weft.shard(torch.ones(4 * count), weft.make_mesh({"a": count}), weft.P("a"))[1:] if count > 1 else None
    if weft.distributed.process_index():
        kept = None
    programs = {name: known for name, known in KNOWN.items() if math.prod(known.sizes.values()) == count}
    for seed in range(first, last):
        programs[f"seed {seed}"] = make_program(seed, differentiable=seed % 3 == 0, devices=count)
        programs[f"views of seed {seed}"] = make_chain(seed, devices=count)
    for name, program in programs.items():
        said = difference(program)
        if said:
            print(f"process {weft.distributed.process_index()}, {name}: {said}\n\n{program}")
            return 1
    print("all equal" if kept is None or is_copy(kept) else "the copy is none")
    return 0


def run(first: int, last: int, processes: int, devices_per_process: int = 1) -> list[Ended]:
    """How each process ended."""
    command = [__file__, "--seeds", str(first), str(last), "--devices-per-process", str(devices_per_process)]
    with Processes(command, processes) as started:
        return started.wait(280)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 100))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--devices-per-process", type=int, default=1)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        return work(*asked.seeds, asked.devices_per_process)
    ended = run(*asked.seeds, asked.processes, asked.devices_per_process)
    for each in ended:
        print(each.out, each.err, sep="\n")
    return int(any(each.status for each in ended))


if __name__ == "__main__":
    sys.exit(main())
