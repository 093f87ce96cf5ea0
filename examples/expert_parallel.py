"""Expert parallel: each device has some of the experts, and tokens travel to theirs and back with `all_to_all`.

    python examples/expert_parallel.py

What a device does is said with `local_map`, on what it holds: it sorts its tokens into one box per expert, the boxes
change places, its experts do their work, and the boxes go back.
"""

from __future__ import annotations

import torch

import weft
from weft import P

EXPERTS, TOKENS, DIM, HIDDEN = 8, 32, 6, 10


def routed(tokens: torch.Tensor, router: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """For each token its expert, and how much that expert counts."""
    weight, expert = (tokens @ router).softmax(-1).max(-1)
    return expert, weight


def worked(boxes: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """What experts make of their boxes: (expert, place, dim) to the same."""
    return torch.relu(boxes @ up) @ down


def on_one_device(tokens: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Every token goes through its expert."""
    expert, weight = routed(tokens, router)
    return worked(tokens[:, None], up[expert], down[expert])[:, 0] * weight[:, None]


def on_a_device(tokens: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The same for the tokens and the experts of one device."""
    expert, weight = routed(tokens, router)
    chosen = torch.nn.functional.one_hot(expert, EXPERTS)
    place = (chosen.cumsum(0) * chosen).sum(-1) - 1
    boxes = tokens.new_zeros(EXPERTS, len(tokens), DIM).index_put((expert, place), tokens)
    arrived = weft.all_to_all(boxes, split_axis=0, concat_axis=1)
    back = weft.all_to_all(worked(arrived, up, down), split_axis=1, concat_axis=0)
    return back[expert, place] * weight[:, None]


def main() -> None:
    """Runs the layer on one device and on four, and compares values and gradients."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"ep": 4})
    plain = [
        torch.randn(shape, dtype=torch.float64).requires_grad_()
        for shape in [(TOKENS, DIM), (DIM, EXPERTS), (EXPERTS, DIM, HIDDEN), (EXPERTS, HIDDEN, DIM)]
    ]
    specs = (P("ep"), P(), P("ep"), P("ep"))
    sharded = [weft.shard(x.detach(), mesh, spec).requires_grad_() for x, spec in zip(plain, specs, strict=True)]
    layer = weft.local_map(on_a_device, specs, P("ep"), mesh=mesh)

    expected = on_one_device(*plain)
    expected.square().sum().backward()
    with weft.comm_log() as log:
        found = layer(*sharded)
    found.square().sum().backward()

    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-9, atol=1e-12)
    for one, other in zip(plain, sharded, strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-9, atol=1e-12)
    print(
        f"{TOKENS} tokens, {EXPERTS} experts on {mesh.num_devices} devices: {log.counts()}, {log.total_bytes:,} bytes"
    )
    print("outputs and gradients are those of one device")


if __name__ == "__main__":
    main()
