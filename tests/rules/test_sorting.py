"""Ordering along any dim, in any layout, is that of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft

from .case import Case
from .harness import GRID, laid, layouts, memory

X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

ORDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "sort": lambda x: x.sort(0),
    "sort last": lambda x: x.sort(descending=True),
    "sort stable": lambda x: x.sort(dim=1, stable=True),
    "argsort": lambda x: x.argsort(0),
    "msort": torch.msort,
    "topk": lambda x: x.topk(3, dim=0),
    "topk smallest": lambda x: x.topk(2, dim=1, largest=False),
    "kthvalue": lambda x: x.kthvalue(2, dim=0),
    "kthvalue keepdim": lambda x: x.kthvalue(2, dim=1, keepdim=True),
    "median": lambda x: x.median(0),
    "median of all": lambda x: x.median(),
    "mode": lambda x: x.round().detach().mode(1),
    "searchsorted": lambda x: torch.searchsorted(x.detach().sort().values, x.detach()),
    "bucketize": lambda x: torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)),
    "unique": lambda x: torch.unique(x.detach().round(), return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.unique(x.detach().round(), dim=0),
    "unique_consecutive": lambda x: torch.unique_consecutive(x.detach().round()),
}


CASES = {name: Case(function, (X,), limit=8) for name, function in ORDERS.items()}


@pytest.mark.parametrize("name", CASES)
def test_orders_of_any_layout(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_the_largest_of_a_split_dim_move_only_what_devices_offer(separate: bool) -> None:
    x = torch.randn(3, 41, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    for layout in layouts(GRID, 2):
        with memory(separate):
            ours = laid(x, layout)
            with weft.comm_log() as log:
                values, indices = ours.topk(2, 1, False)
            torch.testing.assert_close(values.full_tensor(), x.topk(2, 1, False).values)
            torch.testing.assert_close(x.gather(1, indices.full_tensor()), x.topk(2, 1, False).values)
            parts = layout.split_count(1)
            rows = 3 if not layout.splits[0] else 2
            if parts > 1 and not layout.pending:
                assert log.bytes_received <= 2 * 8 * rows * 2 * (parts - 1)
