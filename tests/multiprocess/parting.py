"""Two processes are to sum over both for the first time, and one of them fails before it does: the other is there alone.

It fails as it sees that they bring different tensors, or, where that is asked for, in code of its own.
"""

from __future__ import annotations

import sys

import torch

import weft
from weft import P


def main() -> None:
    """Ends with an error in both."""
    weft.distributed.init(backend="gloo", timeout=600)
    mesh = weft.make_mesh({"a": 2})
    here = weft.distributed.process_index()
    fails_by_itself = "by itself" in sys.argv
    x = weft.shard(torch.full((4,), 0.0 if fails_by_itself else float(here)), mesh, P("a"))
    if fails_by_itself and here == 1:
        raise ValueError("no such sample")
    x.sum().item()


if __name__ == "__main__":
    main()
