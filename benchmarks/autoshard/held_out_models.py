"""Models that nothing was made by: a scan, convolutions before attention, many experts, sound to words, and tables of embeddings.

Each gives its loss.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from text_models import Block, Experts, Perceptron, Shape, norm
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it


class Scan(nn.Module):
    """A gated sum along the sequence that forgets, like Mamba's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up, self.gate, self.rate = (nn.Linear(shape.width, shape.hidden, bias=False) for _ in range(3))
        self.around = nn.Conv1d(shape.hidden, shape.hidden, 4, padding=3, groups=shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        y = self.around(self.up(x).transpose(1, 2))[..., :length].transpose(1, 2)
        forgotten = -F.softplus(self.rate(x)).cumsum(1)
        kept = forgotten.exp() * (F.silu(y) * (-forgotten).exp()).cumsum(1)
        return self.down(kept * F.silu(self.gate(x)))


class Scans(nn.Module):
    """A language model of scans."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList([nn.Sequential(norm(shape), Scan(shape)) for _ in range(shape.layers)])
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Hybrid(nn.Module):
    """Convolutions that make a picture small, then attention, like CoAtNet."""

    def __init__(self, shape: Shape, widths: tuple[int, ...] = (64, 128, 256)) -> None:
        super().__init__()
        sizes = (3, *widths, shape.width)
        pairs = list(pairwise(sizes))
        self.stem = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1, bias=False) for a, b in pairs])
        self.norms = nn.ModuleList([nn.BatchNorm2d(b) for _, b in pairs])
        self.blocks = nn.ModuleList([Block(shape, causal=False) for _ in range(shape.layers)])
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = pictures
        for around, even in zip(self.stem, self.norms, strict=True):
            x = F.gelu(even(around(x)))
        x = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), labels)


class Latent(nn.Module):
    """Attention whose keys and values come of few numbers for each token, like DeepSeek's."""

    def __init__(self, shape: Shape, few: int) -> None:
        super().__init__()
        self.heads, self.size = shape.heads, shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.narrow = nn.Linear(shape.width, few, bias=False)
        self.key, self.value = (nn.Linear(few, shape.width, bias=False) for _ in range(2))
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        few = self.narrow(x)
        query, key, value = (
            y.view(*x.shape[:2], self.heads, self.size).transpose(1, 2)
            for y in (self.query(x), self.key(few), self.value(few))
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(*x.shape))


class SharedExperts(nn.Module):
    """A perceptron for every token, and experts beside it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.perceptron, self.experts = (
            Latent(shape, shape.width // 8),
            Perceptron(shape),
            Experts(shape),
        )
        self.before, self.between = norm(shape), norm(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        y = self.between(x)
        return x + self.perceptron(y) + self.experts(y)


class ManyExperts(nn.Module):
    """A language model of them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList([SharedExperts(shape) for _ in range(shape.layers)])
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Listener(nn.Module):
    """Sound to words: an encoder of sound, and a decoder that looks at it, like Whisper."""

    def __init__(self, shape: Shape, bands: int = 80) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(bands, shape.width, 3, 1, 1), nn.Conv1d(shape.width, shape.width, 3, 2, 1)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.width))
        self.encoder = nn.ModuleList([Block(shape, causal=False) for _ in range(shape.layers)])
        self.decoder = nn.ModuleList([Block(shape, causal=True, crossed=True) for _ in range(shape.layers)])
        self.norm, self.last = norm(shape), norm(shape)

    def forward(self, sound: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.second(F.gelu(self.first(sound)))).transpose(1, 2)
        for block in self.encoder:
            x = block(x)
        x, y = self.norm(x), self.embedding(labels) + self.position[: labels.shape[1]]
        for block in self.decoder:
            y = block(y, x)
        logits = F.linear(self.last(y), self.embedding.weight)  # tied
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class WideAndDeep(nn.Module):
    """Large tables of embeddings beside a perceptron of plain numbers, and products of all pairs, like DLRM."""

    def __init__(self, tables: int = 8, entries: int = 1_000_000, width: int = 128, numbers: int = 512) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(entries, width) for _ in range(tables)])
        self.ups = nn.ModuleList([nn.Linear(numbers, 512), nn.Linear(512, width)])
        count = tables + 1
        self.top = nn.ModuleList([nn.Linear(count * count + width, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 1)])

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor, clicked: torch.Tensor) -> torch.Tensor:
        x = numbers
        for up in self.ups:
            x = F.relu(up(x))
        looked = [table(ids[:, at]) for at, table in enumerate(self.tables)]
        every = torch.stack([x, *looked], 1)
        pairs = torch.bmm(every, every.transpose(1, 2)).flatten(1)
        y = torch.cat([x, pairs], 1)
        for layer in self.top[:-1]:
            y = F.relu(layer(y))
        return F.binary_cross_entropy_with_logits(self.top[-1](y).flatten(), clicked)
