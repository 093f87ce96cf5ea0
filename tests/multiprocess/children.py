"""A program whose processes start others: forked ones, workers of a DataLoader, spawned ones with tensors as arguments."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

import weft
from weft import P


class Rows(Dataset[torch.Tensor]):
    """What a worker reads of a tensor that each process has whole."""

    def __init__(self, x: weft.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> torch.Tensor:
        return (self.x * 2).full_tensor()[i] + 100 * weft.distributed.process_index()


def status_of(child: int, patience: float = 90) -> int | str:
    """How a child ended."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "it did not end"


def told(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except RuntimeError as error:
        return str(error)
    return "nothing"


def end(status: int) -> None:
    """Ends a child as the end of a program does, with all that the interpreter and torch do then."""
    ctypes.pythonapi.Py_Exit(status)


def leave_and_end(status: int) -> None:
    weft.distributed.shutdown()
    end(status)


def forked(x: weft.Tensor, whole: weft.Tensor) -> None:
    """Children compute with what they have, are refused what they have not, and end."""
    coming = weft.all_gather(x, async_op=True)
    children: dict[int, int] = {}
    for status, way in {7: sys.exit, 8: end, 9: leave_and_end}.items():
        child = os.fork()
        if child == 0:
            assert weft.distributed.process_count() == 2
            assert torch.equal((whole + x.local_shards[0].sum() * 0).full_tensor(), whole.full_tensor())
            said = told(lambda: weft.all_gather(x))
            assert "this process was forked from process" in said, said
            assert "all_gather of float32[8]" in said, said
            assert said.endswith("those that work together"), said
            way(status)
        children[status] = child
    assert {status: status_of(child) for status, child in children.items()} == {7: 7, 8: 8, 9: 9}
    assert torch.equal(coming.full_tensor(), torch.arange(8.0))
    here = 100 * weft.distributed.process_index()
    rows = [row.item() for row in DataLoader(Rows(whole), num_workers=1, multiprocessing_context="fork")]
    assert rows == [2 * i + here for i in range(8)]


def spawned(x: weft.Tensor, whole: weft.Tensor) -> None:
    """A tensor of which a process has all goes to those that it starts; of another it says so."""
    processes = multiprocessing.get_context("spawn")
    answers = processes.Queue()
    child = processes.Process(target=answer, args=(whole, answers))
    child.start()
    assert answers.get(timeout=200) == (28.0, 2, weft.distributed.process_index(), 8, "(–)")
    child.join(60)
    assert child.exitcode == 0
    said = told(lambda: processes.Process(target=answer, args=(x, answers)).start())
    assert "this process holds 1 of the 2 parts of Tensor(f32[8@a] on a=2), so it cannot pickle it" in said


def answer(x: weft.Tensor, answers: multiprocessing.Queue[object]) -> None:
    count, index = weft.distributed.process_count(), weft.distributed.process_index()
    answers.put((x.sum().item(), count, index, len(weft.local_devices()), str(x.mapping.layout(1))))


def main() -> None:
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.arange(8.0), mesh, P("a"))
    whole = weft.all_gather(x)
    assert isinstance(x, weft.Tensor)
    forked(x, whole)
    if weft.distributed.process_index() == 1:
        spawned(x, whole)
    assert x.sum().item() == 28
    print("done")


if __name__ == "__main__":
    main()
