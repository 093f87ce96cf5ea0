"""What each of several processes runs: training steps for real, counting what it holds and what moves."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

import weft
from tests.paper.counting import Counting, pieces_of
from tests.paper.llama import LAYOUTS, made, step
from weft.watch.comm_log import CommRecord


def facts(record: CommRecord) -> list[object]:
    """A movement in words that JSON has."""
    layouts = str(record.source), str(record.target)
    return [record.kind, list(record.axes), *layouts, list(record.shape), record.bytes_received, record.total_bytes]


class Counted(NamedTuple):
    """The most that was held in a step, and all that moved."""

    peak: int
    moved: list[list[object]]


def counted(layout: str, blocks: int = 1) -> Counted:
    """What one step really holds and moves."""
    model, optimizer, ids = made(layout, blocks)
    counting = Counting(pieces_of([*model.parameters(), ids]))
    with weft.comm_log() as log, counting:
        step(model, optimizer, ids)
    return Counted(counting.peak, [facts(record) for record in log])


def main(names: Sequence[str]) -> None:
    weft.distributed.init(devices_per_process=int(names[0]))
    found = {name: counted(name)._asdict() for name in names[1:] or LAYOUTS}
    if not torch.distributed.get_rank():
        print(json.dumps(found))
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
