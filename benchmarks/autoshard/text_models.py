"""Transformers as plain modules, in the shapes of Llama, GPT-2, BERT, T5, ViT and Mixtral; each gives its loss.

The names of parameters are the same in all of them, so that one set of patterns lays them out: `query`, `key`, `value`, `gate` and
`up` have rows by heads or hidden units, `out` and `down` have columns by them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer."""

    width: int
    hidden: int
    heads: int
    vocabulary: int
    layers: int
    key_heads: int = 0
    """Of keys and values; 0: as many as of queries."""
    gated: bool = False
    biased: bool = True
    causal: bool = True
    positions: int = 0
    """Learned ones; 0: none."""
    experts: int = 0
    chosen: int = 2


def norm(shape: Shape) -> nn.Module:
    """The kind of norm that goes with the biases."""
    return nn.LayerNorm(shape.width) if shape.biased else nn.RMSNorm(shape.width)


class Attention(nn.Module):
    """Attention to itself, or to what an encoder gives."""

    def __init__(self, shape: Shape, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.key_heads, self.causal = shape.heads, shape.key_heads or shape.heads, causal
        self.size = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.width, bias=shape.biased)
        self.key, self.value = (nn.Linear(shape.width, self.key_heads * self.size, bias=shape.biased) for _ in range(2))
        self.out = nn.Linear(shape.width, shape.width, bias=shape.biased)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        y = x if other is None else other
        query = self._split(self.query(x), self.heads)
        key, value = self._split(self.key(y), self.key_heads), self._split(self.value(y), self.key_heads)
        grouped = self.key_heads != self.heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).reshape(*x.shape))

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)


class Perceptron(nn.Module):
    """Up, and down again; gated or not."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False) if shape.gated else None
        self.up = nn.Linear(shape.width, shape.hidden, bias=shape.biased)
        self.down = nn.Linear(shape.hidden, shape.width, bias=shape.biased)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x)))
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A perceptron for each expert, with room for as many tokens of a row as it gets when all get the same.

    Tokens are sent by products with a mask, so that nothing depends on values: a dry run has none.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.count, self.chosen = shape.experts, shape.chosen
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts_gate, self.experts_up = (
            nn.Parameter(torch.empty(shape.experts, shape.width, shape.hidden)) for _ in range(2)
        )
        self.experts_down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        room = x.shape[1] * self.chosen // self.count
        weight, chosen = self.router(x).softmax(-1).topk(self.chosen)
        experts, places = (torch.arange(size, device=x.device) for size in (self.count, room))
        sent = x.new_zeros(())
        for k in range(self.chosen):
            here = chosen[..., k, None] == experts
            place = here.int().cumsum(1) - 1
            mask = here.unsqueeze(-1) & (place.unsqueeze(-1) == places)
            sent = sent + mask.to(x.dtype) * weight[..., k, None, None]
        rows = torch.einsum("bsec,bsd->ebcd", (sent > 0).to(x.dtype), x)
        hidden = F.silu(torch.einsum("ebcd,edh->ebch", rows, self.experts_gate))
        hidden = hidden * torch.einsum("ebcd,edh->ebch", rows, self.experts_up)
        return torch.einsum("bsec,ebcd->bsd", sent, torch.einsum("ebch,ehd->ebcd", hidden, self.experts_down))


class Block(nn.Module):
    """Attention, to an encoder's result as well where there is one, then a perceptron."""

    def __init__(self, shape: Shape, *, causal: bool, crossed: bool = False) -> None:
        super().__init__()
        self.before, self.between = norm(shape), norm(shape)
        self.attention = Attention(shape, causal=causal)
        self.crossing = norm(shape) if crossed else None
        self.cross = Attention(shape, causal=False) if crossed else None
        self.perceptron = Experts(shape) if shape.experts else Perceptron(shape)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        if self.cross is not None and self.crossing is not None:
            x = x + self.cross(self.crossing(x), other)
        return x + self.perceptron(self.between(x))


class LanguageModel(nn.Module):
    """Llama, GPT-2, BERT or Mixtral, by its shape."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.width)) if shape.positions else None
        self.blocks = nn.ModuleList([Block(shape, causal=shape.causal) for _ in range(shape.layers)])
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        if self.position is not None:
            x = x + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Translator(nn.Module):
    """An encoder and a decoder that looks at it, like T5."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.encoder = nn.ModuleList([Block(shape, causal=False) for _ in range(shape.layers)])
        self.decoder = nn.ModuleList([Block(shape, causal=True, crossed=True) for _ in range(shape.layers)])
        self.norm, self.last = norm(shape), norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.encoder:
            x = block(x)
        x, y = self.norm(x), self.embedding(labels)
        for block in self.decoder:
            y = block(y, x)
        return F.cross_entropy(self.head(self.last(y)).flatten(0, 1), labels.flatten())


class VisionTransformer(nn.Module):
    """Patches of a picture as words."""

    def __init__(self, shape: Shape, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, shape.width, patch, patch)
        self.position = nn.Parameter(torch.zeros(shape.positions, shape.width))
        self.blocks = nn.ModuleList([Block(shape, causal=False) for _ in range(shape.layers)])
        self.norm = norm(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), labels)
