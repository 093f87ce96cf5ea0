"""Counting writes, where torch leaves that to what runs an op."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import increment_version

__all__ = ["count_writes"]


def count_writes(written: Iterable[torch.Tensor]) -> None:
    """Counts a write to each tensor."""
    written = tuple(written)
    try:
        increment_version(written)
    except RuntimeError:  # tensors made in inference mode count nothing, and are no mistake here
        increment_version([x for x in written if not x.is_inference()])
