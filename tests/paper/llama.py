"""A small Llama, its training step, and ways to lay it out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import weft
from weft import P

WIDTH, HIDDEN, HEADS, VOCABULARY = 64, 128, 8, 96


class Norm(nn.Module):
    """A root-mean-square norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    """Attention, then a gated product."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.before(x)
        query, key, value = (
            of(y).view(batch, length, HEADS, -1).transpose(1, 2) for of in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A language model."""

    def __init__(self, blocks: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def patterns(rows: str | None, columns: str | None) -> dict[str, P]:
    """Weights whose features that heads and gates have are split over one axis, the others over another."""
    wide, narrow = P(rows, columns), P(columns, rows)
    return {
        **dict.fromkeys(("*query.weight", "*key.weight", "*value.weight", "*gate.weight", "*up.weight"), wide),
        **dict.fromkeys(("*out.weight", "*down.weight"), narrow),
        "head.weight": P((rows, columns)) if rows and columns else wide,
        "embedding.weight": P((rows, columns)) if rows and columns else P(rows) if rows else P(columns),
    }


LAYOUTS: dict[str, tuple[dict[str, int], dict[str, P], P]] = {
    "one device": ({"dp": 1}, {}, P()),
    "replicas": ({"dp": 4}, {}, P("dp")),
    "whole batch": ({"dp": 4}, {}, P()),
    "heads": ({"tp": 4}, patterns("tp", None), P()),
    "heads and replicas": ({"dp": 2, "tp": 2}, patterns("tp", None), P("dp")),
    "split weights": ({"dp": 4}, patterns(None, "dp"), P("dp")),
    "split rows": ({"dp": 4}, patterns("dp", None), P("dp")),
    "heads and split weights": ({"dp": 2, "tp": 2}, patterns("tp", "dp"), P("dp")),
    "heads on two": ({"tp": 2}, patterns("tp", None), P()),
    "heads on four, replicas": ({"dp": 2, "tp": 4}, patterns("tp", None), P("dp")),
    "sequences": ({"cp": 4}, {}, P(None, "cp")),
    "heads and whole batch": ({"dp": 2, "tp": 2}, patterns("tp", "dp"), P()),
}
"""Meshes, patterns and the layout of the batch."""


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
    """Forward, backward, and a step of the optimizer."""
    logits = model(ids)
    loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()


def made(layout: str, blocks: int = 1) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """The model, its optimizer and a batch, laid out."""
    sizes, names, spec = LAYOUTS[layout]
    mesh = weft.make_mesh(sizes)
    torch.manual_seed(0)
    model = weft.nn.shard_module(Llama(blocks), mesh, names)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    ids = weft.shard(torch.randint(0, VOCABULARY, (8, 32)), mesh, spec)
    assert isinstance(ids, torch.Tensor)
    return model, optimizer, ids
