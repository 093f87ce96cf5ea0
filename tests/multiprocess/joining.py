"""A program whose processes join in one of several ways, and say what they then have in common."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import weft
from weft import P


def summed(mesh: weft.DeviceMesh) -> float:
    return float(weft.shard(torch.arange(6.0), mesh, P("a")).sum())


def main(how: str) -> None:
    here = int(os.environ["RANK"])
    torch.manual_seed(100 + here)  # as a program that forgets that all have to draw the same
    if how == "own group":
        dist.init_process_group("gloo")
    elif how != "by itself":
        weft.distributed.init(backend="gloo", timeout=60)
    mesh = weft.make_mesh({"a": weft.distributed.process_count()})
    if how == "early":
        weft.shard(torch.arange(6.0), mesh, P("a"))
        time.sleep(here)
        raise ValueError("nobody has communicated yet")
    print(summed(mesh), weft.rand(4).tolist(), torch.rand(2).tolist())
    if how == "twice":
        weft.distributed.shutdown()
        weft.distributed.shutdown()
        assert not weft.distributed.is_initialized()
        assert not dist.is_initialized()
    elif how == "own group":
        weft.distributed.shutdown()
        assert dist.is_initialized()  # who made it ends it
        weft.distributed.init()
        print(summed(mesh), torch.rand(2).tolist())
        dist.destroy_process_group()
    elif how == "trouble":
        assert here != 1, "something is wrong here"
        print(summed(mesh))


if __name__ == "__main__":
    main(sys.argv[1])
