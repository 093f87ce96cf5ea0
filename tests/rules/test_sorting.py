"""Ordering along any dim, in any layout, is that of the whole tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft.planning import plan_layouts
from weft.sharding.layout import Layout
from weft.tensor.tensor import Tensor

from .case import Case
from .harness import GRID, LINE, flat, laid, layouts, memory

X = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

ORDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "sort": lambda x: x.sort(0),
    "sort last": lambda x: x.sort(descending=True),
    "sort stable": lambda x: x.sort(dim=1, stable=True),
    "argsort": lambda x: x.argsort(0),
    "msort": torch.msort,
    "topk": lambda x: x.topk(3, dim=0),
    "topk of most": lambda x: x.topk(5, dim=1),
    "topk smallest": lambda x: x.topk(2, dim=1, largest=False),
    "kthvalue": lambda x: x.kthvalue(2, dim=0),
    "kthvalue keepdim": lambda x: x.kthvalue(2, dim=1, keepdim=True),
    "kthvalue, nearly the largest": lambda x: x.kthvalue(5, dim=1),
    "median": lambda x: x.median(0),
    "nanmedian": lambda x: x.nanmedian(1, keepdim=True),
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
    x = torch.randn(3, 60041, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
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


ROWS: dict[str, Callable[[torch.Tensor], object]] = {
    "sort": lambda x: x.sort(1),
    "sort, stable and backwards": lambda x: x.sort(dim=1, descending=True, stable=True),
    "argsort": lambda x: x.detach().argsort(1),
    "topk": lambda x: x.topk(9, 1),
    "kthvalue": lambda x: x.kthvalue(6, 1),
    "median": lambda x: x.median(1),
    "nanmedian": lambda x: x.nanmedian(1, keepdim=True),
    "mode": lambda x: x.detach().mode(1),
    "cummax": lambda x: x.cummax(1),
    "fft": lambda x: torch.fft.rfft(x, dim=1).abs(),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
def test_a_split_goes_aside_so_that_rows_are_whole(name: str, separate: bool) -> None:
    x = torch.randn(7, 11, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    plain = x.clone().requires_grad_()
    right = [y for y in flat(ROWS[name](plain)) if isinstance(y, torch.Tensor)]
    grown = [y for y in right if y.requires_grad]
    for split, aside in (
        (Layout(LINE, [(), ("x",), ()]), Layout(LINE, [("x",), (), ()])),
        (Layout(GRID, [(), ("b", "a"), ()]), Layout(GRID, [("b", "a"), (), ()])),
        (Layout(GRID, [("b",), ("a",), ()]), Layout(GRID, [("b", "a"), (), ()])),
    ):
        with memory(separate):
            ours = laid(x, split).requires_grad_()
            with weft.comm_log() as log:
                found = [y for y in flat(ROWS[name](ours)) if isinstance(y, Tensor)]
            for y, z in zip(found, right, strict=True):
                assert y._layout.splits[0] == aside.splits[0]
                torch.testing.assert_close(y.detach().full_tensor(), z.detach())
            plan = plan_layouts(split, aside, (7, 11, 2), 8)
            assert [(r.kind, r.total_bytes) for r in log] == [
                (step.kind, step.bytes_received.total) for step in plan.steps
            ]
            gathered = plan_layouts(split, split.with_split(1, ()), (7, 11, 2), 8)
            assert log.bytes_received < gathered.bytes_received.max
            roots = [y for y in found if y.requires_grad]
            if roots:
                ones = [torch.ones_like(y) for y in grown]
                given = [laid(one, y._layout) for one, y in zip(ones, roots, strict=True)]
                (grad,) = torch.autograd.grad(roots, [ours], given)
                (expected,) = torch.autograd.grad(grown, [plain], ones, retain_graph=True)
                torch.testing.assert_close(grad.full_tensor(), expected)  # type: ignore[attr-defined]
                assert grad._layout is split  # type: ignore[attr-defined]


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
@pytest.mark.parametrize("shape", [(1, 12), (2, 12), (12,), (2, 2), (0, 4)])
def test_rows_fewer_than_devices_are_ordered_too(shape: tuple[int, ...], separate: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    split = Layout(LINE, [*[()] * (len(shape) - 1), ("x",)])
    with memory(separate):
        ours = laid(x, split)
        for function in (torch.sort, torch.median, lambda y, dim: y.topk(2, dim), lambda y, dim: y.kthvalue(1, dim)):
            for y, z in zip(function(ours, dim=-1), function(x, dim=-1), strict=True):
                torch.testing.assert_close(y.full_tensor(), z)
        with weft.comm_log() as log:
            ours.sort(-1)
        gathered = plan_layouts(split, Layout.replicated(LINE, len(shape)), shape, 8).bytes_received
        assert log.bytes_received <= gathered.max


@pytest.mark.parametrize("separate", [False, True], ids=["unified", "separate"])
@pytest.mark.parametrize("k", [1, 2, 3, 6, 10, 20, 30, 39, 40, 41])
@pytest.mark.parametrize("size", [41, 60041])
def test_what_is_offered_or_whole_rows_whichever_is_sooner(size: int, k: int, separate: bool) -> None:
    x = torch.randn(3, size, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    x[1, 7] = torch.nan
    split, whole = Layout(GRID, [(), ("a", "b")]), Layout.replicated(GRID, 2)
    rows = plan_layouts(split, Layout(GRID, [("a", "b"), ()]), (3, size), 8)

    def expected(offered: int) -> int:
        offers = plan_layouts(split, whole, (3, 4 * offered), 8)
        is_offered = offered <= size // 4 and 2 * offers.estimated_time <= rows.estimated_time
        return 2 * offers.bytes_received.max if is_offered else rows.bytes_received.max

    with memory(separate):
        for function, offered in ((torch.topk, k), (torch.kthvalue, min(k, size + 1 - k))):
            with weft.comm_log() as log:
                values, places = function(laid(x, split), k, 1)
            right = function(x, k, 1)
            torch.testing.assert_close(values.full_tensor(), right.values, equal_nan=True)
            assert torch.equal(places.full_tensor(), right.indices)
            assert log.bytes_received == expected(offered)
