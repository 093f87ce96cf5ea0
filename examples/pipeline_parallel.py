"""Pipeline parallel: each device has one stage of the model, and microbatches move from stage to stage with `ppermute`.

    python examples/pipeline_parallel.py

The weights of all stages are one tensor, split over "pp" along its first dim, and so are the microbatches under way. In
every tick all stages compute at once; then what a stage has made moves on to the next. The backward pass needs no code:
the transpose of a permutation is its inverse, so gradients run through the pipeline the other way.
"""

from __future__ import annotations

import torch

import weft
from weft import P

STAGES, MICROBATCHES, ROWS, DIM = 4, 6, 3, 8


def on_one_device(weights: torch.Tensor, batches: torch.Tensor) -> torch.Tensor:
    """All stages one after another."""
    for weight in weights:
        batches = torch.tanh(batches @ weight)
    return batches


def pipelined(weights: torch.Tensor, batches: torch.Tensor) -> torch.Tensor:
    """The same, with stage and microbatch of each device moving on tick by tick."""
    onward = [(stage, stage + 1) for stage in range(STAGES - 1)]
    first = weft.shard(torch.eye(STAGES, dtype=batches.dtype)[0].reshape(STAGES, 1, 1), weights.mesh, P("pp"))
    state = first * batches[0]
    finished = []
    for tick in range(MICROBATCHES + STAGES - 1):
        state = torch.tanh(state @ weights)
        if tick >= STAGES - 1:
            finished.append(state[-1])
        state = weft.ppermute(state, onward)
        if tick + 1 < MICROBATCHES:
            state = state + first * batches[tick + 1]
    return torch.stack(finished)


def main() -> None:
    """Runs the pipeline forward and backward, and compares with one device."""
    torch.manual_seed(0)
    mesh = weft.make_mesh({"pp": STAGES})
    plain = (0.4 * torch.randn(STAGES, DIM, DIM, dtype=torch.float64)).requires_grad_()
    batches = torch.randn(MICROBATCHES, ROWS, DIM, dtype=torch.float64)
    weights = weft.shard(plain.detach(), mesh, P("pp")).requires_grad_()

    expected = on_one_device(plain, batches)
    expected.square().sum().backward()
    with weft.comm_log() as log:
        found = pipelined(weights, batches)
    found.square().sum().backward()

    torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(weights.grad.full_tensor(), plain.grad, rtol=1e-9, atol=1e-12)
    print(f"{MICROBATCHES} microbatches through {STAGES} stages in {MICROBATCHES + STAGES - 1} ticks: {log.counts()}")
    print(
        "each device holds",
        tuple(weights.local_shards[0].shape),
        "of the weights; outputs and gradients are those of one device",
    )


if __name__ == "__main__":
    main()
