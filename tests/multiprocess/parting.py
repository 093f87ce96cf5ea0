"""Two processes bring different tensors, and then sum over both for the first time: the one that sees the difference goes, the other is there alone."""

from __future__ import annotations

import torch

import weft
from weft import P


def main() -> None:
    """Ends with an error in both."""
    weft.distributed.init(backend="gloo", timeout=600)
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.full((4,), float(weft.distributed.process_index())), mesh, P("a"))
    x.sum().item()


if __name__ == "__main__":
    main()
