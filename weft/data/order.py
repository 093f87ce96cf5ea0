"""`Order`: which samples each batch of an epoch has, the same in every process and every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard, final

import torch
from torch.utils.data import DataLoader, IterableDataset

__all__ = ["Order", "has_order"]


def has_order(loader: object) -> TypeGuard[DataLoader[object]]:
    """Whether the batches of a loader can be told without loading them.

    >>> has_order(DataLoader([1, 2, 3])), has_order([1, 2, 3])
    (True, False)
    """
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
    )


@final
class Order:
    """The batches of a loader's own sampler, drawn by a seed of ours: the epoch can be begun again anywhere.

    >>> order = Order(DataLoader(list(range(6)), batch_size=4, shuffle=True), seed=7)
    >>> order.batches(epoch=1) == order.batches(epoch=1), order.batches(epoch=1) == order.batches(epoch=2)
    (True, False)
    """

    def __init__(self, loader: DataLoader[object], seed: int) -> None:
        assert loader.batch_sampler is not None
        self._sampler, self.seed = loader.batch_sampler, seed

    def batches(self, epoch: int) -> list[list[int]]:
        """The samples of each batch of an epoch."""
        for each in (self._sampler, getattr(self._sampler, "sampler", None)):
            set_epoch = getattr(each, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
            generator = getattr(each, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(self.seed + epoch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + epoch)
            return [list(batch) for batch in self._sampler]


class Rows(Sequence[list[int]]):
    """The samples of each batch that one process loads: a stretch of it. This is what its loader takes for a sampler."""

    def __init__(self, batches: Sequence[list[int]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> list[int]:  # type: ignore[override]
        return self._batches[index]
