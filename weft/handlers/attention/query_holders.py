"""`QueryHolder`: a device at work on attention: what it has of the queries, and which heads of keys these use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...runtime.holding import holding
from ...sharding.geometry import Box, box_at
from ...sharding.layout import Layout
from ...sharding.mesh import Slot
from .lay import Lay, heads_of

__all__ = ["QueryHolder", "query_holders"]


@dataclass(frozen=True, slots=True)
class QueryHolder:
    """A device at work."""

    slot: Slot
    part: int
    """Which part of the sequence it has."""
    query: Box
    heads: slice | list[int]
    """Which of the heads of keys that it has it uses."""

    @property
    def has_queries(self) -> bool:
        """Whether it has anything to do."""
        return all(start < stop for start, stop in self.query)

    def taken(self, x: torch.Tensor) -> torch.Tensor:
        """The heads of keys that are used."""
        return x[:, self.heads]

    def put_back(self, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Gradients of the heads that are used, among zeros for the others."""
        if isinstance(self.heads, slice) and x.shape[1] == shape[1]:
            return x
        whole = x.new_zeros((shape[0], shape[1], *x.shape[2:]))
        if isinstance(self.heads, slice):
            whole[:, self.heads] = x
            return whole
        return whole.index_add_(1, torch.tensor(self.heads, device=x.device), x)


def query_holders(lay: Lay, made: Layout | None = None) -> list[QueryHolder]:
    """The devices of this process at work, one for each piece of what they make: it lies like the queries, or as `made`."""
    here = holding(made or lay.query)
    return [_holder(lay, slot, at) for slot, at in zip(here.slots, here.coords, strict=True)]


def _holder(lay: Lay, slot: Slot, coords: tuple[int, ...]) -> QueryHolder:
    query = box_at(lay.query, lay.query_shape, coords)
    key = box_at(lay.key, lay.key_shape, coords)
    return QueryHolder(slot, lay.part_at(coords), query, heads_of(query[1], key[1], lay.groups))
