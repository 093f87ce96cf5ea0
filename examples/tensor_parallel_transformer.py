"""Tensor parallel: heads and hidden units of a transformer lie over the devices.

    python examples/tensor_parallel_transformer.py

The first linear of each pair is split by its outputs, the second by its inputs, so that attention and perceptron each
end in one pending sum: two all-reduces a block, which the log shows.
"""

from __future__ import annotations

import copy

import torch
from models.llama import LAYOUTS, Llama
from torch.nn import functional

import weft
from weft import P


def loss_of(model: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """How badly the model predicts each next token."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Trains on one device and on two by four, and compares."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 2, "tp": 4})
    plain = Llama(vocabulary=64, length=16, dim=32, heads=8, groups=4, hidden=64).double()
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, LAYOUTS["tp"])
    print(weft.nn.sharding_report(model))

    stream = weft.shard(torch.randn(4, 16, 32, dtype=torch.float64), mesh, P("dp"))
    with torch.no_grad(), weft.comm_log() as log:
        model.blocks[0](stream)
    print("one block forward:", log.counts())

    optimizers = [torch.optim.AdamW(m.parameters(), lr=3e-3) for m in (plain, model)]
    for i in range(5):
        tokens = torch.randint(0, 64, (4, 17))
        losses = []
        for m, optimizer, batch in zip(
            (plain, model), optimizers, (tokens, weft.shard(tokens, mesh, P("dp"))), strict=True
        ):
            optimizer.zero_grad()
            loss = loss_of(m, batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=0)
        print(f"step {i}: loss {losses[1]:.6f}, on one device {losses[0]:.6f}")


if __name__ == "__main__":
    main()
