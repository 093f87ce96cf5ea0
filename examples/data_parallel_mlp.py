"""Data parallel: every device has the whole model and a part of the batch.

    python examples/data_parallel_mlp.py

The model is plain torch. Sharding the batch is all there is to it: gradients of replicated parameters arrive as sums
over the devices' parts, reduced once per parameter.
"""

from __future__ import annotations

import copy

import torch
from models.mlp import MLP
from torch.nn import functional

import weft
from weft import P


def step(model: MLP, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """One step of training; the same for one device and for many."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    """Trains on one device and on eight, and compares."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 8})
    plain = MLP().double()
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, {})
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (plain, model)]

    for i in range(10):
        x, y = torch.randn(32, 16, dtype=torch.float64), torch.randint(0, 8, (32,))
        expected = step(plain, optimizers[0], x, y)
        with weft.comm_log() as log:
            found = step(model, optimizers[1], weft.shard(x, mesh, P("dp")), weft.shard(y, mesh, P("dp")))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
        print(f"step {i}: loss {found:.6f}, on one device {expected:.6f}, {log.total_bytes:,} bytes moved")

    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, rtol=1e-9, atol=1e-12)
    print("the parameters are those of one device:", log.counts())


if __name__ == "__main__":
    main()
