"""One GPU of several, played by a process: runs its own launch of each collective over memory shared through files.

Run as `python -m tests.kernels.peer FOLDER ME PEERS ROUNDS`. In the interpreter a launch runs to its end before it
returns, so launches that wait for each other need a process each, just as they need a GPU each.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

from weft.kernels.collectives.shots import shots
from weft.kernels.element import element
from weft.kernels.group import GpuGroup
from weft.kernels.launch import launches, start
from weft.kernels.signals import ORDINALS, SIGNAL_BYTES

SIZE = 700  # floats: three programs


def shared(folder: Path, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_file(str(folder / name), shared=True, size=size, dtype=dtype)


def play(folder: Path, me: int, peers: int, rounds: int) -> None:
    inputs = [shared(folder, f"input{i}", SIZE, torch.float32) for i in range(peers)]
    outputs = [shared(folder, f"output{i}", SIZE, torch.float32) for i in range(peers)]
    signals = [shared(folder, f"signal{i}", SIGNAL_BYTES // 4, torch.int32) for i in range(peers)]
    chance = random.Random(me)
    for turn in range(rounds):
        # Every second round leaves out peer 1, which may then run ahead of the others.
        members = [i for i in range(peers) if turn % 2 == 0 or i != 1]
        if me not in members:
            continue
        inputs[me].fill_(1000.0 * turn + me)
        outputs[me].fill_(-1.0)
        time.sleep(chance.random() / 100)
        groups = [GpuGroup((n,), torch.device("cpu"), None, ORDINALS + i) for n, i in enumerate(members)]
        works = shots(
            "combine",
            groups,
            [inputs[i].data_ptr() for i in members],
            [outputs[i].data_ptr() for i in members],
            SIZE * 4,
            in_place=turn % 3 == 0,
        )
        made = launches(
            works, groups, [signals[i].data_ptr() for i in members], ("sum", element("peer", torch.float32, "sum"))
        )
        start([made[members.index(me)]])
        expected = sum(1000.0 * turn + i for i in members)
        if not bool((outputs[me] == expected).all()):
            raise SystemExit(f"peer {me}, round {turn}: expected {expected}, found {outputs[me].unique().tolist()}")


if __name__ == "__main__":
    play(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:5]))
