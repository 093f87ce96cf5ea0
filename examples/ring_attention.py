"""Ring attention: the sequence lies over the devices, and keys and values go round with `ppermute`.

    python examples/ring_attention.py

Each device keeps its queries. In every round it looks at the keys and values it has just received, adds what they say
to a running softmax, and passes them on, so that no device ever holds the whole sequence or a whole row of scores.
"""

from __future__ import annotations

import torch

import weft
from weft import P

DEVICES, HEADS, LENGTH, DIM = 4, 2, 16, 8


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one device's queries to all keys; tensors are (head, position, dim)."""
    here, length = weft.axis_index("sp"), q.shape[1]
    onward = [(i, (i + 1) % DEVICES) for i in range(DEVICES)]
    rows = torch.arange(length) + here * length
    top = q.new_full((HEADS, length, 1), float("-inf"))
    total, result = torch.zeros_like(top), torch.zeros_like(q)
    for round_ in range(DEVICES):
        columns = torch.arange(length) + (here - round_) % DEVICES * length
        scores = q @ k.transpose(1, 2) / DIM**0.5
        scores = scores.masked_fill(columns > rows[:, None], float("-inf"))
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        kept, new = (top - higher).exp(), (scores - higher).exp()
        total = total * kept + new.sum(-1, keepdim=True)
        result = result * kept + new @ v
        top = higher
        if round_ < DEVICES - 1:
            k, v = weft.ppermute(k, onward), weft.ppermute(v, onward)
    return result / total


def main() -> None:
    """Runs attention on one device and on a ring of four, and compares values and gradients."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"sp": DEVICES})
    plain = [torch.randn(HEADS, LENGTH, DIM, dtype=torch.float64).requires_grad_() for _ in range(3)]
    sharded = [weft.shard(x.detach(), mesh, P(None, "sp")).requires_grad_() for x in plain]

    expected = torch.nn.functional.scaled_dot_product_attention(*plain, is_causal=True)
    expected.square().sum().backward()
    attention = weft.local_map(ring_attention, P(None, "sp"), P(None, "sp"), mesh=mesh)
    with weft.comm_log() as log:
        found = attention(*sharded)
    found.square().sum().backward()

    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-9, atol=1e-12)
    for one, other in zip(plain, sharded, strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-9, atol=1e-12)
    print(f"a sequence of {LENGTH} on a ring of {DEVICES}: {log.counts()}, {log.bytes_received:,} bytes per device")
    print("outputs and gradients are those of one device")


if __name__ == "__main__":
    main()
