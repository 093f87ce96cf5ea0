"""A perceptron with one hidden layer per pair of linears, as inside a transformer block."""

from __future__ import annotations

import torch
from torch import nn

from weft import P

LAYOUTS = {
    "dp": {},
    "tp": {"*.up.*": P("tp"), "*.down.weight": P(None, "tp")},
}
"""Megatron's split: the hidden dim lies over "tp", so that a pair of linears needs one reduction."""


class Layer(nn.Module):
    """Up, activation, down, and the input added."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One residual step."""
        return x + self.down(torch.tanh(self.up(x)))


class MLP(nn.Module):
    """Residual layers and a linear head."""

    def __init__(self, dim: int = 16, hidden: int = 32, depth: int = 2, outputs: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim, hidden) for _ in range(depth))
        self.head = nn.Linear(dim, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, outputs)."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
