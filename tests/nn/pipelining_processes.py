"""What each of several processes runs for `test_pipelines`: every schedule, on stages that lie in different processes."""

from __future__ import annotations

import sys

import torch

import weft
from tests.nn.pipelining import check, check_fully_sharded, data, every, made, places
from weft.errors import MismatchError


def check_training(count: int) -> None:
    """What comes after a step: a norm over all stages, an optimizer, the next step's loss."""
    pipe = made("1f1b", count, count, 4)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.01)
    tokens, wanted = data()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(pipe.step(tokens, wanted).item())
        torch.nn.utils.clip_grad_norm_(pipe.parameters(), 1.0)
        optimizer.step()
    assert losses[0] > losses[1] > losses[2], losses


def check_disagreement(count: int) -> None:
    """Processes that would wait for each other are told why."""
    here = weft.distributed.process_index()
    pipe = made("1f1b" if here else "gpipe", count, count, 4)
    try:
        pipe.step(*data())
    except MismatchError as error:
        assert "run different pipelines: here schedule is" in str(error), error
    else:
        raise AssertionError("it was not noticed")


def main(count: int, devices: int, schedules: str) -> None:
    """Runs the schedules that are named, or all of them."""
    weft.distributed.init(devices_per_process=devices)
    for name, stages in every(count):
        if schedules in ("all", name):
            check(name, stages, count, 8)
    if "dp" in places(count)[0].axis_names:
        check_fully_sharded("zb-h1", count, count)
        check_fully_sharded("interleaved", 2 * count, count, recomputes=True)
    check_training(count)
    check_disagreement(count)
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
