"""A transformer block in tensor and data parallel layouts moves what it must."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

from weft.sharding.layout import Layout
from weft.sharding.mesh import make_mesh
from weft.sharding.placements import ReduceOp

from .harness import laid, memory, moves

BATCH, LENGTH, WIDTH, HEADS = 4, 6, 32, 4
MESH = make_mesh({"dp": 2, "tp": 4})

WEIGHTS: dict[str, tuple[tuple[int, ...], tuple[str | None, ...]]] = {
    "norm1": ((WIDTH,), (None,)),
    "query": ((WIDTH, WIDTH), ("tp", None)),
    "key": ((WIDTH, WIDTH), ("tp", None)),
    "value": ((WIDTH, WIDTH), ("tp", None)),
    "out": ((WIDTH, WIDTH), (None, "tp")),
    "norm2": ((WIDTH,), (None,)),
    "up": ((4 * WIDTH, WIDTH), ("tp", None)),
    "up bias": ((4 * WIDTH,), ("tp",)),
    "down": ((WIDTH, 4 * WIDTH), (None, "tp")),
    "down bias": ((WIDTH,), (None,)),
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32, generator=torch.Generator().manual_seed(seed)) / 4


def block(x: torch.Tensor, w: dict[str, torch.Tensor]) -> torch.Tensor:
    h = nn.layer_norm(x, (WIDTH,), w["norm1"])
    heads = [nn.linear(h, w[name]).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for name in ("query", "key", "value")]
    h = nn.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(x.shape)
    x = x + nn.linear(h, w["out"])
    h = nn.layer_norm(x, (WIDTH,), w["norm2"])
    return x + nn.linear(nn.gelu(nn.linear(h, w["up"], w["up bias"])), w["down"], w["down bias"])


def placed(axes: tuple[str | None, ...]) -> Layout:
    return Layout(MESH, [(axis,) if axis else () for axis in axes])


@pytest.mark.parametrize("separate", [False, True])
def test_one_all_reduce_per_half(separate: bool) -> None:
    plain = {name: numbers(*shape, seed=i).requires_grad_() for i, (name, (shape, _)) in enumerate(WEIGHTS.items())}
    x = numbers(BATCH, LENGTH, WIDTH, seed=99)
    expected = block(x, plain)
    expected.square().mean().backward()
    with memory(separate):
        weights = {name: laid(w, placed(WEIGHTS[name][1])).requires_grad_() for name, w in plain.items()}
        given = laid(x, placed(("dp", None, None)))
        assert moves(lambda: block(given, weights)) == {"all_reduce": 1}
        out = block(given, weights)
        assert out._layout == Layout(MESH, [("dp",), (), ()], {"tp": ReduceOp.SUM})
        assert moves(lambda: out + 1) == {"all_reduce": 1}
        torch.testing.assert_close(out.detach().full_tensor(), expected.detach(), rtol=1e-4, atol=1e-4)
        out.square().mean().backward()
        for name, w in weights.items():
            assert w.grad._layout is w._layout
            torch.testing.assert_close(w.grad.full_tensor(), plain[name].grad, rtol=1e-4, atol=1e-4)
