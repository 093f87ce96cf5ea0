"""Expert parallel: each device has some of the experts, and tokens travel to theirs and back.

    python examples/expert_parallel.py

The layer is plain code for one device, written as libraries of models write it. Only the layouts of its inputs say that
experts are split: each row goes to where its expert is, exactly once, and comes back.
"""

from __future__ import annotations

import torch

import weft
from weft import P

EXPERTS, TOP, TOKENS, DIM, HIDDEN = 8, 2, 32, 8, 12


def layer(tokens: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Every token goes through the experts that the router chooses for it."""
    weight, chosen = (tokens @ router).softmax(-1).topk(TOP)
    ids, order = chosen.reshape(-1).sort()
    rows = tokens[order // TOP]
    ends = torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
    made = torch._grouped_mm(torch.relu(torch._grouped_mm(rows, up, offs=ends)), down, offs=ends)
    made = made * weight.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return made[back].view(tokens.size(0), TOP, -1).sum(1)


def main() -> None:
    """Runs the layer on one device and on four, and compares values and gradients."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"ep": 4})
    plain = [
        torch.randn(shape).requires_grad_()
        for shape in [(TOKENS, DIM), (DIM, EXPERTS), (EXPERTS, DIM, HIDDEN), (EXPERTS, HIDDEN, DIM)]
    ]
    specs = (P("ep"), P(), P("ep"), P("ep"))
    sharded = [weft.shard(x.detach(), mesh, spec).requires_grad_() for x, spec in zip(plain, specs, strict=True)]

    expected = layer(*plain)
    expected.square().mean().backward()
    with weft.comm_log() as log:
        found = layer(*sharded)
    found.square().mean().backward()

    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(plain, sharded, strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-4, atol=1e-5)
    there, back = [record for record in log if record.rows and record.shape == (TOKENS * TOP, DIM)]
    print(
        f"{TOKENS} tokens, {EXPERTS} experts on {mesh.num_devices} devices: {there.total_bytes:,} bytes of tokens there"
    )
    print(f"and {back.total_bytes:,} back; tokens of each device: {there.rows}, of each expert: {there.groups}")
    print("outputs and gradients are those of one device")


if __name__ == "__main__":
    main()
