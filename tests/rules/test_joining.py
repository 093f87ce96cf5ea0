"""Tensors in any layouts, joined, are what they are when joined whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .case import Case

G = torch.Generator().manual_seed(3)
X = torch.randn(5, 4, dtype=torch.float64, generator=G)
Y = torch.randn(3, 4, dtype=torch.float64, generator=G)

JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "cat": lambda x, y: torch.cat([x, y]),
    "cat twice": lambda x, y: torch.cat([x, x, y, x]),
    "cat other dim": lambda x, y: torch.cat([x[:3], y], dim=1),
    "cat last": lambda x, y: torch.cat([x[:3], y, y], dim=-1),
    "cat with empty": lambda x, y: torch.cat([x, torch.empty(0), y]),
    "cat with plain": lambda x, y: torch.cat([x, torch.ones(2, 4, dtype=torch.float64), y]),
    "cat promotes": lambda x, y: torch.cat([x, y.round().long()]),
    "stack": lambda x, y: torch.stack([x[:3], y]),
    "stack inside": lambda x, y: torch.stack([x[:3], y], dim=1),
    "stack last": lambda x, y: torch.stack([x[:3], y], dim=-1),
    "hstack": lambda x, y: torch.hstack([x[:3], y]),
    "vstack": lambda x, y: torch.vstack([x, y]),
    "dstack": lambda x, y: torch.dstack([x[:3], y]),
    "column_stack": lambda x, y: torch.column_stack([x[:3], y]),
    "block_diag": torch.block_diag,
    "cartesian_prod": lambda x, y: torch.cartesian_prod(x[:, 0], y[:, 0]),
}


CASES = {name: Case(function, (X, Y), limit=8) for name, function in JOINS.items()}


@pytest.mark.parametrize("name", CASES)
def test_joins_of_any_layouts(name: str) -> None:
    CASES[name].check()
