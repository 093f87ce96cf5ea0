"""Runs PyTorch's own samples of its ops in several processes, each of which compares what it sees with plain torch.

    python tests/multiprocess/op_samples.py --processes 2 --every 1

The tensors of the samples are transposed, channels last, with gaps and expanded: see `tests/rules/strided.py`. Error inputs
are refused by every process. Started by a launcher, it is one of these processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch.utils._pytree import tree_map

import weft

if "RANK" in os.environ:  # the samples' meshes are made when their modules are imported
    weft.distributed.init(backend="gloo", timeout=60, devices_per_process=2)

from tests.multiprocess.launching import Ended, Processes
from tests.rules.opinfo import LAYOUTS, REASONS, _fresh, largest_sample, name_of, op_infos
from tests.rules.strided import EXCEPTIONS, VARIANTS, concerns, fault
from tests.rules.test_error_inputs import LIES, TAKEN, differs, refusal

OF_ONE_PROCESS = {
    "tensor_split": "with indices in a tensor: torch reads their memory itself",
}
"""Ops that are not tried over processes, and why."""


def faults(every: int, first: int) -> Iterator[str]:
    """What is not as with plain torch: every so many ops, from one on."""
    for op in op_infos()[first::every]:
        name = name_of(op)
        if name in REASONS or name in EXCEPTIONS or name in OF_ONE_PROCESS:
            continue
        sample = largest_sample(op)
        for variant, how in VARIANTS.items():
            if concerns(sample, how):
                layout = list(LAYOUTS)[crc32(f"{name} {variant}".encode()) % len(LAYOUTS)]
                found = fault(op, sample, how, LAYOUTS[layout])  # type: ignore[arg-type]
                if found:
                    yield f"{name}, {variant}, {layout}: {found}"


def taken(every: int, first: int) -> Iterator[str]:
    """Error inputs that are not refused as plain torch refuses them."""
    for op in op_infos()[first::every]:
        make = op.error_inputs_func  # type: ignore[attr-defined]
        for each in () if make is None or name_of(op) in TAKEN else make(op, "cpu"):
            sample = each.sample_input
            given = (sample.input, sample.args, sample.kwargs)
            plain = refusal(op, tree_map(_fresh, given))  # type: ignore[arg-type]
            found = differs(refusal(op, tree_map(LIES["replicated"], given)), plain)  # type: ignore[arg-type]
            if found is not None:
                yield f"{name_of(op)}: {found}"


def work(every: int, first: int) -> int:
    """What each process does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = [*faults(every, first), *taken(every, first)]
    print("\n".join(said) or "all equal")
    return bool(said)


def run(every: int, first: int, processes: int) -> list[Ended]:
    """How each process ended."""
    command = [__file__, "--every", str(every), "--first", str(first)]
    with Processes(command, processes) as started:
        return started.wait(3000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        return work(given.every, given.first)
    ended = run(given.every, given.first, given.processes)
    for number, each in enumerate(ended):
        print(f"process {number} ended with {each.status}\n{each.out}{each.err[-2000:]}")
    return max(each.status for each in ended)


if __name__ == "__main__":
    sys.exit(main())
