"""Losses and models for tests of `autoshard`."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812 - as torch's users call it


def language_loss(logits: object, ids: torch.Tensor) -> torch.Tensor:
    """How badly each word is told."""
    assert isinstance(logits, torch.Tensor)
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
