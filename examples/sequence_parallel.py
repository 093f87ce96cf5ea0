"""Sequence parallel: between the split linears, each device keeps a part of the sequence.

    python examples/sequence_parallel.py

With the tensor-parallel layouts, norms and residual adds are computed by every device alike. Here the residual stream is
split along the sequence, so they are not: what an all-reduce did, a reduce-scatter and an all-gather do. Nothing in the
model changes: the layout of its input decides, and `shard_activations` says where the sequence is put together, once for
all three projections.
"""

from __future__ import annotations

import copy

import torch
from models.gpt2 import GPT2, LAYOUTS

import weft
from weft import P


def main() -> None:
    """Runs a block in both layouts, forward and backward, and compares with one device."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"dp": 2, "tp": 4})
    plain = GPT2(length=16, dim=32, heads=4, depth=1).double().blocks[0]
    x = torch.randn(4, 16, 32, dtype=torch.float64, requires_grad=True)
    expected = plain(x)
    expected.square().mean().backward()

    for name, spec in {"tensor parallel": P("dp"), "sequence parallel": P("dp", "tp")}.items():
        block = weft.nn.shard_module(copy.deepcopy(plain), mesh, LAYOUTS["tp"])
        block.zero_grad()
        parts = ("attention", "perceptron")
        weft.nn.shard_activations(block, mesh, inputs=dict.fromkeys(parts, P("dp")), outputs=dict.fromkeys(parts, spec))
        stream = weft.shard(x.detach(), mesh, spec).requires_grad_()
        with weft.comm_log() as forward:
            found = block(stream)
        with weft.comm_log() as backward:
            found.square().mean().backward()
        torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(stream.grad.full_tensor(), x.grad, rtol=1e-9, atol=1e-12)
        for one, other in zip(plain.parameters(), block.parameters(), strict=True):
            torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-9, atol=1e-12)
        held = stream.local_shards[0].numel() * stream.itemsize
        print(f"{name}: {held:,} bytes of the stream on each device")
        print(f"  forward  {forward.counts()}\n  backward {backward.counts()}")


if __name__ == "__main__":
    main()
