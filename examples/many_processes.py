"""One file for one process, several, and several hosts: data parallel over all devices there are.

    python examples/many_processes.py
    torchrun --nproc-per-node 2 examples/many_processes.py

Every process trains a plain copy of the model, too, to compare with; only the first one prints.
"""

from __future__ import annotations

import copy

import torch
from models.mlp import MLP
from torch.nn import functional

import weft
from weft import P


def main() -> None:
    """Trains on all devices of all processes, and compares with one device."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": len(weft.devices())})
    plain = MLP().double()
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, {})
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (plain, model)]
    for step in range(3):
        x, y = torch.randn(24, 16, dtype=torch.float64), torch.randint(0, 8, (24,))
        losses = []
        for network, optimizer, place in zip((plain, model), optimizers, (None, mesh), strict=True):
            batch = (x, y) if place is None else (weft.shard(x, place, P("dp")), weft.shard(y, place, P("dp")))
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())  # the same number in every process, so all of them ask for it
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=0)
        if weft.on_main():
            print(f"step {step}: loss {losses[1]:.9f}")
    if weft.on_main():
        print(f"{weft.distributed.process_count()} processes, {len(weft.devices())} devices")


if __name__ == "__main__":
    main()
