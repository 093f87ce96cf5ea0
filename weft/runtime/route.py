"""`Route`: where rows lie before and after they are sent."""

from __future__ import annotations

from typing import final

import torch

from ..caches import cached
from ..sharding.layout import Layout
from ..sharding.mesh import DeviceMesh, Slot
from .machine import forget_with_residences

__all__ = ["Route", "line_of", "places_among"]


@final
class Route:
    """Where each row lies before and after: numbers of devices along the axes that split the rows, from 0 to `count`.

    A device has its rows in the order in which they stand in the whole.

    >>> route = Route(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 0, 1]), 2)
    >>> route.counts, route.leaving(0, 1).tolist(), route.order(0).tolist()
    ([[1, 1], [1, 1]], [0], [0, 1])
    """

    def __init__(self, before: torch.Tensor, after: torch.Tensor, count: int) -> None:
        self.before, self.after, self.count = before, after, count
        both = torch.bincount(before * count + after, minlength=count * count)
        self.counts: list[list[int]] = both.view(count, count).tolist()
        """How many rows go from one device (first) to another."""

    def received(self, number: int) -> int:
        """How many rows a device receives from others."""
        return sum(row[number] for other, row in enumerate(self.counts) if other != number)

    def leaving(self, source: int, target: int) -> torch.Tensor:
        """Which rows of those on one device go to another."""
        return (self.after[self.before == source] == target).nonzero().squeeze(1)

    def sent(self, piece: torch.Tensor, dim: int, source: int, target: int) -> torch.Tensor:
        """What one device sends another, of the piece that it has."""
        return piece.index_select(dim, self.leaving(source, target).to(piece.device))

    def order(self, target: int) -> torch.Tensor:
        """Where each row of a device is found among what has come, one sender after another."""
        senders = self.before[self.after == target]
        return senders.argsort(stable=True).argsort()


@cached(1024, cleared_by=forget_with_residences)
def _lines(mesh: DeviceMesh, axes: tuple[str, ...]) -> dict[Slot, tuple[Slot, ...]]:
    """For each device, those that stand with it in a line along some axes, in order."""
    return {slot: line for line in mesh.groups(axes) for slot in line}


def line_of(layout: Layout, dim: int, slot: Slot) -> tuple[Slot, ...]:
    """The devices among which the rows that one has a part of are split, in order.

    >>> from weft.sharding.mesh import make_mesh
    >>> line_of(Layout(make_mesh({"a": 2, "b": 3}), (("b",), ())), 0, 4)
    (3, 4, 5)
    """
    return _lines(layout.mesh, layout.splits[dim])[slot]


def places_among(at: torch.Tensor) -> torch.Tensor:
    """For each row its place among those on the same device.

    >>> places_among(torch.tensor([1, 0, 1, 1, 0]))
    tensor([0, 0, 1, 2, 1])
    """
    order = at.argsort(stable=True)
    counts = torch.bincount(at)
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    places = torch.empty_like(at)
    places[order] = torch.arange(len(at)) - starts
    return places
