"""A program whose threads communicate: in an order that all processes know, or each process in another one."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

import weft
from weft import P
from weft.runtime.processes import current_call

THREADS, ROUNDS = 3, 6


class Turns:
    """Lets threads go one after another, in the order of their numbers."""

    def __init__(self) -> None:
        self._next, self._changed = 0, threading.Condition()

    def wait(self, number: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == number, 60)

    def end(self) -> None:
        with self._changed:
            self._next += 1
            self._changed.notify_all()


def in_turns(mesh: weft.DeviceMesh) -> None:
    """Small and large messages of several threads: who comes first is the same everywhere, how long it takes is not."""
    turns = Turns()

    def work(thread: int) -> bool:
        right = True
        for number in range(thread, THREADS * ROUNDS, THREADS):
            rows = 4 if number % 2 else 8192
            value = torch.full((rows, 4), float(number))
            x = weft.shard(value, mesh, P("a"))
            turns.wait(number)
            y = weft.all_gather(x, async_op=number % 3 == 0)
            turns.end()
            right = right and torch.equal(y.full_tensor() if y.done() else y.wait().full_tensor(), value)
        return right

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(THREADS)))


def overlapping(mesh: weft.DeviceMesh) -> None:
    """While a thread waits for the other process in a call, another thread comes with the next call, and has to wait."""
    value = torch.arange(16.0).reshape(4, 4)
    x = weft.shard(value, mesh, P("a"))
    weft.all_gather(x)
    if weft.distributed.process_index() == 1:
        time.sleep(0.5)
        first, second = weft.all_gather(x), weft.ppermute(x, [(0, 1), (1, 0)])
    else:
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(weft.all_gather, x)
            while current_call.current() is None:
                time.sleep(0.001)
            other = pool.submit(weft.ppermute, x, [(0, 1), (1, 0)])
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                call = current_call.current()
                assert call is not None
                assert call.op == "all_gather", call
                time.sleep(0.01)
            first, second = one.result(), other.result()
    assert torch.equal(first.full_tensor(), value)
    assert torch.equal(second.full_tensor(), value.roll(2, 0))


def another_order(mesh: weft.DeviceMesh) -> None:
    """The threads of one process come in another order than those of the other."""
    x = weft.shard(torch.ones(4, 4), mesh, P("a"))
    calls = [lambda: weft.all_gather(x), lambda: weft.ppermute(x, [(0, 1), (1, 0)])]
    for call in calls:
        call()
    told: list[str] = []

    def make(number: int) -> None:
        try:
            calls[number]()
        except weft.WeftError as error:
            told.append(f"{type(error).__name__}: {error}")

    here = weft.distributed.process_index()
    for number in (here, 1 - here):
        thread = threading.Thread(target=make, args=[number])
        thread.start()
        thread.join()
    print("\n".join(told) or "nothing")


def main(how: str) -> None:
    weft.distributed.init(backend="gloo", timeout=4 if how == "another_order" else 120)
    mesh = weft.make_mesh({"a": 2})
    {"in_turns": in_turns, "overlapping": overlapping, "another_order": another_order}[how](mesh)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
