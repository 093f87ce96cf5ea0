"""A Llama-style transformer: rotary positions, RMS norms, grouped keys and values, gated perceptron, no biases."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from weft import P

LAYOUTS = {
    "dp": {},
    "tp": {
        "*.[qkv]_proj.weight": P("tp", None),
        "*.gate_proj.weight": P("tp", None),
        "*.up_proj.weight": P("tp", None),
        "*.o_proj.weight": P(None, "tp"),
        "*.down_proj.weight": P(None, "tp"),
    },
}
"""Heads and hidden units lie over "tp"; whatever else there is, is replicated."""


def rotary(length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the angles by which positions turn pairs of features."""
    rates = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates).repeat(1, 2)
    return angles.cos().float(), angles.sin().float()


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Features turned by their positions' angles."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Attention(nn.Module):
    """Causal self-attention in which several query heads share a key and a value head."""

    def __init__(self, dim: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, dim // heads
        self.q_proj = nn.Linear(dim, heads * self.size, bias=False)
        self.k_proj = nn.Linear(dim, groups * self.size, bias=False)
        self.v_proj = nn.Linear(dim, groups * self.size, bias=False)
        self.o_proj = nn.Linear(heads * self.size, dim, bias=False)
        cos, sin = rotary(length, self.size)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position looks at those before it."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        cos, sin = self.cos[:length], self.sin[:length]
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, self.heads * self.size))


class Perceptron(nn.Module):
    """A hidden layer with a gate."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same function at every position."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and perceptron, each after a norm and added to its input."""

    def __init__(self, dim: int, heads: int, groups: int, hidden: int, length: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, groups, length)
        self.perceptron = Perceptron(dim, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        x = x + self.attention(self.norm_1(x))
        return x + self.perceptron(self.norm_2(x))


class Llama(nn.Module):
    """Token embedding, blocks, norm and head."""

    def __init__(
        self,
        vocabulary: int = 32,
        length: int = 8,
        dim: int = 16,
        heads: int = 4,
        groups: int = 4,
        hidden: int = 32,
        depth: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, groups, hidden, length) for _ in range(depth))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The residual stream before the first block."""
        return self.tokens(tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
