"""Recurrent modules keep lists of their weights of their own, which have to follow when the weights become sharded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["following_weights"]


@contextmanager
def following_weights(module: torch.nn.Module) -> Iterator[None]:
    """Lets recurrent modules look for their weights again when the block is over.

    They refer to their weights weakly, and torch swaps no tensors that are referred to weakly.
    """
    found = [each for each in module.modules() if isinstance(each, torch.nn.RNNBase)]
    for each in found:
        each._flat_weight_refs = []
        # cuDNN wants all weights in one memory, which it finds by their pointers; shards have none in common.
        each.flatten_parameters = _stay_apart  # type: ignore[method-assign]
    yield
    for each in found:
        each._init_flat_weights()


def _stay_apart() -> None:
    """Flattens nothing."""
