"""`reduced_once`: the gradients of all microbatches add up on each device before devices add up theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from ...engine.moves.adding_up import adding_up
from ...engine.moves.movement import aligned
from ...tensor.tensor import public

__all__ = ["reduced_once"]


@contextmanager
def reduced_once(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Inside, sums of gradients over devices are left pending; at the end they are taken, and added to what was there."""
    unique = list({id(x): x for x in parameters}.values())
    before = [x.grad for x in unique]
    for x in unique:
        x.grad = None
    try:
        with adding_up():
            yield
    finally:
        with torch.no_grad():
            for x, earlier in zip(unique, before, strict=True):
                found = aligned(x.grad, public(x)._layout)
                x.grad = found if earlier is None else earlier if found is None else earlier + found
