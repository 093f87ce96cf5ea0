"""Two processes are to sum over both for the first time, and one of them fails before it does: the other is there alone.

It fails as it sees that they bring different tensors, or, where that is asked for, in code of its own; or its program ends early, as
that of the first of three does whose devices nobody else needs.
"""

from __future__ import annotations

import sys
import time

import torch

import weft
from weft import P


def without_the_first() -> None:
    """Those with devices of a mesh begin to communicate when the one without, which keeps the store for them, has come to its end."""
    mesh = weft.make_mesh({"a": 2}, devices=weft.devices()[1:])
    x = weft.shard(torch.arange(4.0), mesh, P("a"))
    if not weft.on_main():
        time.sleep(0.5)
    print(*(shard.tolist() for shard in weft.all_gather(x * 2).local_shards))


def main() -> None:
    """Ends with an error in both."""
    weft.distributed.init(backend="gloo", timeout=600)
    if "without the first" in sys.argv:
        without_the_first()
        return
    mesh = weft.make_mesh({"a": 2})
    here = weft.distributed.process_index()
    fails_by_itself = "by itself" in sys.argv
    x = weft.shard(torch.full((4,), float(here) if len(sys.argv) == 1 else 0.0), mesh, P("a"))
    if fails_by_itself and here == 1:
        raise ValueError("no such sample")
    if "early" in sys.argv and here == 1:
        return
    x.sum().item()
    if "the first" in sys.argv:
        y = weft.shard(torch.ones(int(sys.argv[2])), mesh, P("a"))
        y.full_tensor()
        if here == 1:
            (y + 1).full_tensor()


if __name__ == "__main__":
    main()
