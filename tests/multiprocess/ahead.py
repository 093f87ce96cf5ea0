"""A program that asks for communication and goes on: the first process tells the second, which only then takes part."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import weft
from weft import P


def main(how: str, folder: str) -> None:
    weft.distributed.init(backend="gloo", timeout=4 if how in ("other", "gone") else 120)
    here = weft.distributed.process_index()
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.arange(8.0).reshape(4, 2), mesh, P("a", None))
    weft.all_gather(x)
    note = Path(folder) / "issued"
    if here == 1:
        while not note.exists():
            time.sleep(0.01)
        if how == "gone":
            raise ValueError("there is no data")
    if how == "other" and here == 1:
        y = weft.ppermute(x, [(0, 1), (1, 0)], async_op=True)
    else:
        y = weft.all_gather(x, async_op=True)  # the line that errors name
    if here == 0:
        print("done before the other has come:", y.done())
        note.touch()
    try:
        if how == "sync":  # what is communicated at once comes after what was asked for before
            print("sum", float(x.sum()), "and by now", y.done())
        print("used:", (y + 1).sum().item(), "wait gives itself:", y.wait() is y, "done:", y.done())
    except weft.WeftError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
