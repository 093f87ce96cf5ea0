"""A GPT-2-style transformer: learned positions, layer norms before attention and perceptron, GELU, biases."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from weft import P

LAYOUTS = {
    "dp": {},
    "tp": {
        "*.q.*": P("tp"),
        "*.k.*": P("tp"),
        "*.v.*": P("tp"),
        "*.up.*": P("tp"),
        "*.out.weight": P(None, "tp"),
        "*.down.weight": P(None, "tp"),
    },
}
"""Heads and hidden units lie over "tp"; whatever else there is, is replicated."""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each position looks at those before it."""
        batch, length, dim = x.shape
        q, k, v = (
            projection(x).view(batch, length, self.heads, dim // self.heads).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, dim))


class Perceptron(nn.Module):
    """Up, GELU, down."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same function at every position."""
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and perceptron, each after a norm and added to its input."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.perceptron = Perceptron(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One step of the residual stream."""
        x = x + self.attention(self.norm_1(x))
        return x + self.perceptron(self.norm_2(x))


class GPT2(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the token embedding."""

    def __init__(self, vocabulary: int = 32, length: int = 8, dim: int = 16, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.1)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The residual stream before the first block."""
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, length, vocabulary)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
