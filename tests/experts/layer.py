"""A layer of experts as libraries of models write it: tokens sorted by expert, products by groups, and back."""

from __future__ import annotations

import torch
from torch.nn.functional import linear, one_hot, silu

EXPERTS, TOP, DIM, HIDDEN = 8, 2, 8, 12


def layer(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """What the experts that each token chose make of it, weighted."""
    ids, order = chosen.reshape(-1).sort()
    rows = x[order // TOP]
    ends = torch.histc(ids.float(), bins=EXPERTS, min=0, max=EXPERTS - 1).cumsum(0, dtype=torch.int32)
    gate, value = torch._grouped_mm(rows, up.transpose(-2, -1), offs=ends).chunk(2, dim=-1)
    made = torch._grouped_mm(silu(gate) * value, down.transpose(-2, -1), offs=ends)
    made = made * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.size(0))
    return made[back].view(x.size(0), TOP, -1).sum(1)


def loop(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The same, as they write it without products by groups: one expert after another, each with the tokens that chose it."""
    made = torch.zeros_like(x)
    with torch.no_grad():
        mask = one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for each in hit:
        expert = each[0]
        position, token = torch.where(mask[expert])
        gate, value = linear(x[token], up[expert]).chunk(2, dim=-1)
        rows = linear(silu(gate) * value, down[expert]) * weights[token, position, None]
        made.index_add_(0, token, rows.to(made.dtype))
    return made


def iterated(
    x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """The same, by a loop over the matrices themselves, of which the last two are not used."""
    made = torch.zeros_like(x)
    for expert, (upwards, downwards) in enumerate(zip(up, down, strict=True)):
        if expert < EXPERTS - 2:
            token, position = torch.where(chosen == expert)
            gate, value = linear(x[token], upwards).chunk(2, dim=-1)
            rows = linear(silu(gate) * value, downwards) * weights[token, position, None]
            made = made.index_add(0, token, rows)
    return made


def arguments(tokens: int) -> list[torch.Tensor]:
    """Tokens, the experts each chose, how much these count, and the experts' matrices."""
    generator = torch.Generator().manual_seed(tokens)
    chosen = torch.rand(tokens, EXPERTS, generator=generator).topk(TOP).indices
    shapes = [(tokens, DIM), (tokens, TOP), (EXPERTS, 2 * HIDDEN, DIM), (EXPERTS, DIM, HIDDEN)]
    x, weights, up, down = (torch.randn(shape, generator=generator) / 4 for shape in shapes)
    return [x, chosen, weights, up, down]


def in_other_places(chosen: torch.Tensor, devices: int) -> int:
    """How many pairs of a token and an expert lie on different devices, of tokens and experts that are split alike."""
    experts = torch.arange(EXPERTS).tensor_split(devices)
    owner = {int(e): d for d, part in enumerate(experts) for e in part}
    parts = chosen.tensor_split(devices)
    return sum(owner[int(e)] != d for d, part in enumerate(parts) for e in part.reshape(-1))
