"""A program in which one process does something else than the others: what it does, and during what, are its arguments.

All processes make the same call again and again, until the second one misbehaves in the middle of it. Those that notice
say so on standard output, and end with status 3.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch

import weft
from weft import P
from weft.sharding import ReduceOp
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

TIMEOUT = float(os.environ.get("FAULTY_TIMEOUT", "5"))
KNOWN = os.environ.get("FAULTY_KNOWN", "1") == "1"
"""Whether every call has been made once before."""
ROUND = 3 if KNOWN else 0
"""When the second process misbehaves."""
COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "ppermute", "broadcast", "item")
Actions = dict[str, Callable[[], object]]


def collectives(mesh: weft.DeviceMesh, rows: int) -> Actions:
    """What the processes do together; `rows` decides whether messages are small."""
    n = mesh.num_devices
    x = weft.shard(torch.ones(rows * n, n), mesh, P("a", None))
    pending = Layout(mesh, ((), ()), {"a": ReduceOp.SUM})
    shards = [torch.ones(rows * n, n)]
    summed = weft.from_local(shards, named_mapping(pending), shape=(rows * n, n), dtype=torch.float32)
    first = weft.to_device(torch.ones(rows * n, n), weft.CPU(0))
    return {
        "all_gather": lambda: weft.all_gather(x),
        "all_reduce": lambda: weft.all_reduce(summed),
        "reduce_scatter": lambda: weft.reduce_scatter(summed, 0),
        "all_to_all": lambda: weft.all_to_all(x, 1, 0),
        "ppermute": lambda: weft.ppermute(x, [(i, (i + 1) % n) for i in range(n)]),
        "broadcast": lambda: weft.distributed_broadcast(first, mesh),
        "item": lambda: (x * 1).sum().item(),
    }


def send_soon(which: signal.Signals) -> None:
    """Sends this process a signal while it communicates."""
    delay = random.uniform(0, 0.01)
    threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), which)), daemon=True).start()


def misbehave(how: str, mesh: weft.DeviceMesh, actions: Actions, what: str) -> None:
    """What the second process does."""
    if how == "kill":
        send_soon(signal.SIGKILL)
    elif how == "stop":
        send_soon(signal.SIGSTOP)
    elif how == "raise":
        raise ValueError("there is no data")
    elif how == "index":
        split = named_mapping(Layout(mesh, (("a",),)))
        index = weft.from_local([torch.tensor([99])], split, shape=(mesh.num_devices,), dtype=torch.int64)
        weft.zeros(4, mapping=named_mapping(Layout(mesh, ((),))))[index]
    elif how == "leave":
        sys.exit(0)
    elif how == "slow":
        time.sleep(TIMEOUT / 3)
    elif how == "sleep":
        time.sleep(TIMEOUT + 2)
    elif how == "other":
        actions["ppermute" if what != "ppermute" else "all_gather"]()
    elif how == "interrupt":
        time.sleep(600)


def main(how: str, what: str, rows: int) -> None:
    weft.distributed.init(backend="gloo", timeout=TIMEOUT)
    here, n = weft.distributed.process_index(), weft.distributed.process_count()
    mesh = weft.make_mesh({"a": n})
    actions = collectives(mesh, rows)
    for each in actions.values() if KNOWN else ():
        each()
    print("ready", flush=True)
    start = time.monotonic()
    try:
        for number in range(20 if how == "slow" else 1_000_000):
            if here == 1 and number == ROUND:
                misbehave(how, mesh, actions, what)
            start = time.monotonic()
            actions[what]()
    except weft.WeftError as error:
        print(f"after {time.monotonic() - start:.1f} s {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 4)
