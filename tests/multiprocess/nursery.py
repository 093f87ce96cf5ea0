"""A process that has imported everything already, and forks one that runs a program whenever it is asked to.

Importing torch takes seconds, and these tests start dozens of processes. Asked in lines of JSON on standard input:

    {"start": [program, arguments…], "environment": {…}, "out": file, "err": file}   ->   the process id
    {"poll": process id}                                                             ->   its status, or null
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch._dynamo
import torch.distributed
import torch.distributed.tensor

import weft
import weft.tensor
from tests.multiprocess import programs, record  # noqa: F401 - imported for those to come

CLONE_NEWNET = 0x40000000


def run(command: list[str], environment: dict[str, str], out: str, err: str) -> int:
    """What a child does: as a fresh interpreter would."""
    os.environ.clear()
    os.environ.update(environment)
    for file, name in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), file.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    if "NETWORK" in environment:
        _enter_network(environment["NETWORK"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = command
    sys.path[0] = str(Path(command[0]).parent)
    status = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - what the interpreter does with it
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _enter_network(name: str) -> None:
    """What `ip netns exec` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(os.open(f"/run/netns/{name}", os.O_RDONLY), CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {name!r}")


def main() -> None:
    # What torch imports only when it is needed is needed soon.
    x = weft.shard(torch.ones(4, 4), weft.make_mesh({"a": 2}), weft.P("a", None)).requires_grad_()
    (weft.all_gather(x) @ x).softmax(0).sum().backward()
    gc.freeze()  # what is imported by now stays in all children: their collectors need not look at it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            answer: object = os.fork()
            if answer == 0:
                os._exit(run(asked["start"], asked["environment"], asked["out"], asked["err"]))
            children.add(int(str(answer)))
        else:
            ended, status = os.waitpid(asked["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
            children.discard(ended)
        print(json.dumps(answer), flush=True)
    for child in children:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
