"""A block with fewer heads of keys than devices: keys are shared in groups, and a block moves two all-reduces."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

import weft
from weft import P
from weft.sharding.mesh import make_mesh

from .harness import memory

LENGTH, WIDTH, HEADS, OF_KEYS = 6, 32, 8, 2
FEATURES = WIDTH // HEADS
SIZES = {
    "query": (WIDTH, WIDTH),
    "key": (OF_KEYS * FEATURES, WIDTH),
    "value": (OF_KEYS * FEATURES, WIDTH),
    "out": (WIDTH, WIDTH),
    "gate": (2 * WIDTH, WIDTH),
    "up": (2 * WIDTH, WIDTH),
    "down": (WIDTH, 2 * WIDTH),
}
ALL = ("kv", "rep")
LAYOUTS = {
    "keys in groups": (
        {"dp": 2, "kv": 2, "rep": 2},
        {"key": P("kv"), "value": P("kv")}
        | dict.fromkeys(("query", "gate", "up"), P(ALL))
        | dict.fromkeys(("out", "down"), P(None, ALL)),
    ),
    "keys on every device": (
        {"dp": 2, "tp": 4},
        {"key": P(), "value": P()}
        | dict.fromkeys(("query", "gate", "up"), P("tp"))
        | dict.fromkeys(("out", "down"), P(None, "tp")),
    ),
}


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / 4


def repeated(x: torch.Tensor) -> torch.Tensor:
    """Heads of keys, once for each head of queries that uses them, as Hugging Face's models say it."""
    batch, heads, length, features = x.shape
    groups = HEADS // OF_KEYS
    wide = x[:, :, None, :, :].expand(batch, heads, groups, length, features)
    return wide.reshape(batch, heads * groups, length, features)


def block(x: torch.Tensor, w: dict[str, torch.Tensor], repeats: bool) -> torch.Tensor:
    h = nn.rms_norm(x, (WIDTH,))
    query, key, value = (
        nn.linear(h, w[name]).view(*x.shape[:2], -1, FEATURES).transpose(1, 2) for name in ("query", "key", "value")
    )
    if repeats:
        key, value = repeated(key), repeated(value)
    seen = nn.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=not repeats)
    x = x + nn.linear(seen.transpose(1, 2).reshape(*x.shape[:2], -1), w["out"])
    h = nn.rms_norm(x, (WIDTH,))
    return x + nn.linear(nn.silu(nn.linear(h, w["gate"])) * nn.linear(h, w["up"]), w["down"])


@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_block_takes_two_all_reduces(name: str, repeats: bool, separate: bool) -> None:
    axes, specs = LAYOUTS[name]
    mesh = make_mesh(axes)
    plain = {each: numbers(*shape, seed=k).requires_grad_() for k, (each, shape) in enumerate(SIZES.items())}
    x = numbers(4, LENGTH, WIDTH, seed=99)
    expected = block(x, plain, repeats)
    expected.square().mean().backward()
    with memory(separate):
        weights = {each: weft.shard(w.detach(), mesh, specs[each]).requires_grad_() for each, w in plain.items()}
        with weft.comm_log() as log:
            out = block(weft.shard(x, mesh, P("dp")), weights, repeats)
            value = out.square().mean()
        assert log.counts() == {"all_reduce": 2}, "after attention, and after the layers that follow it"
        torch.testing.assert_close(out.detach().full_tensor(), expected.detach())
        value.backward()
        for each, w in weights.items():
            torch.testing.assert_close(w.grad.full_tensor(), plain[each].grad)
