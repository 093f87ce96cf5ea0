"""Convolutions as plain modules: ResNet-50 and a U-Net; and a perceptron. Each gives its loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it


class Bottleneck(nn.Module):
    """Narrow, look around, widen; added to its input."""

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(width, inner, 1, bias=False)
        self.around = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.widen = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(size) for size in (inner, inner, 4 * inner)])
        self.across = nn.Conv2d(width, 4 * inner, 1, stride, bias=False) if width != 4 * inner else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.narrow(x)))
        y = F.relu(self.norms[1](self.around(y)))
        y = self.norms[2](self.widen(y))
        return F.relu(y + (x if self.across is None else self.across(x)))


class ResNet(nn.Module):
    """ResNet-50, or one with other numbers of blocks."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks, wide = [], width
        for stage, depth in enumerate(depths):
            inner = width << stage
            for at in range(depth):
                blocks.append(Bottleneck(wide, inner, 2 if stage and not at else 1))
                wide = 4 * inner
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(wide, classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(pictures))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Twice(nn.Module):
    """Two convolutions."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, wide, 3, 1, 1), nn.Conv2d(wide, wide, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.two(F.relu(self.one(x))))


class UNet(nn.Module):
    """Down to small pictures of many channels, and up again beside what was there on the way down."""

    def __init__(self, width: int = 64, depth: int = 4, classes: int = 2) -> None:
        super().__init__()
        widths = [width << k for k in range(depth + 1)]
        self.into = nn.ModuleList([Twice(a, b) for a, b in zip([3, *widths], widths, strict=False)])
        self.rise = nn.ModuleList([nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1])])
        self.merge = nn.ModuleList([Twice(2 * w, w) for w in reversed(widths[:-1])])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x, kept = pictures, []
        for at, block in enumerate(self.into):
            x = block(x if not at else F.max_pool2d(x, 2))
            kept.append(x)
        for rise, merge, beside in zip(self.rise, self.merge, reversed(kept[:-1]), strict=True):
            x = merge(torch.cat([beside, rise(x)], 1))
        return F.cross_entropy(self.head(x), labels)


class Perceptrons(nn.Module):
    """Wide layers, one after another."""

    def __init__(self, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.ups = nn.ModuleList([nn.Linear(width, hidden) for _ in range(layers)])
        self.downs = nn.ModuleList([nn.Linear(hidden, width) for _ in range(layers)])

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(x)))
        return F.mse_loss(x, labels)
