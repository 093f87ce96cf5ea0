"""A small residual network: convolutions, batch norms, a shortcut, pooling and a linear head."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from weft import P

LAYOUTS = {
    "dp": {},
    "tp": {"*.conv_1.weight": P("tp"), "*.norm_1.*": P("tp"), "*.conv_2.weight": P(None, "tp")},
}
"""The channels between the two convolutions of a block lie over "tp"."""


class Block(nn.Module):
    """Two convolutions with batch norms, and the input added."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.norm_1 = nn.BatchNorm2d(inner)
        self.conv_2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One residual step."""
        y = functional.relu(self.norm_1(self.conv_1(x)))
        return functional.relu(x + self.norm_2(self.conv_2(y)))


class ResNet(nn.Module):
    """A stem, residual blocks, pooling and a head."""

    def __init__(self, channels: int = 4, inner: int = 8, depth: int = 1, outputs: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Block(channels, inner) for _ in range(depth))
        self.head = nn.Linear(channels, outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of shape (batch, outputs)."""
        x = functional.max_pool2d(functional.relu(self.stem(images)), 2)
        for block in self.blocks:
            x = block(x)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))
