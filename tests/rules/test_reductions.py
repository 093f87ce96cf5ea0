"""Reductions in every layout."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, check, laid, memory, moved_bytes, moves


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradient(x: torch.Tensor) -> torch.Tensor:
    """What torch differentiates `aminmax` of: nothing, before 2.12."""
    return x if torch.__version__ >= "2.12" else x.detach()


ALL = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "norm": torch.norm,
    "var": torch.var,
    "std": torch.std,
    "population variance": lambda x: x.var(correction=0),
    "any": lambda x: (x > 1).any(),
    "all": lambda x: (x > -9).all(),
    "any along no dim": lambda x: (x > 1).any((), keepdim=True),
    "all along no dim": lambda x: (x > -1).all(()),
    "count": torch.count_nonzero,
    "aminmax": lambda x: torch.aminmax(with_gradient(x)),
    "nansum": torch.nansum,
    "nanmean": torch.nanmean,
    "median": torch.median,
    "logsumexp": lambda x: torch.logsumexp(x, (0, 1)),
    "in float32": lambda x: x.sum(dtype=torch.float32).double().mul(0),
}


WHOLE = {name: Case(function, (numbers(4, 6),)) for name, function in ALL.items()}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("shape", [(4, 6), (5, 2)])
def test_whole(name: str, shape: tuple[int, ...]) -> None:
    replace(WHOLE[name], tensors=(numbers(*shape),)).check()


ALONG = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k),
    "mean": lambda x, d, k: x.mean(d, keepdim=k),
    "prod": lambda x, d, k: x.prod(d, keepdim=k),
    "max": lambda x, d, k: x.max(d, keepdim=k),
    "min": lambda x, d, k: x.min(d, keepdim=k),
    "amax": lambda x, d, k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: x.amin(d, keepdim=k),
    "argmax": lambda x, d, k: x.argmax(d, keepdim=k),
    "argmin": lambda x, d, k: x.argmin(d, keepdim=k),
    "var": lambda x, d, k: x.var(d, keepdim=k),
    "std_mean": lambda x, d, k: torch.std_mean(x, d, keepdim=k),
    "var_mean": lambda x, d, k: torch.var_mean(x, d, keepdim=k, correction=0),
    "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "any": lambda x, d, k: (x > 1).any(d, keepdim=k),
    "all": lambda x, d, k: (x > -1).all(d, keepdim=k),
    "norm": lambda x, d, k: x.norm(dim=d, keepdim=k),
    "1-norm": lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k),
    "3-norm": lambda x, d, k: torch.linalg.vector_norm(x, 3, d, k),
    "0-norm": lambda x, d, k: torch.linalg.vector_norm(x, 0, d, k),
    "largest": lambda x, d, k: torch.linalg.vector_norm(x, math.inf, d, k),
    "smallest": lambda x, d, k: torch.linalg.vector_norm(x, -math.inf, d, k),
    "aminmax": lambda x, d, k: torch.aminmax(with_gradient(x), dim=d, keepdim=k),
    "median": lambda x, d, k: x.median(d, keepdim=k),
    "count": lambda x, d, k: torch.count_nonzero(x, d),
    "cumsum": lambda x, d, k: x.cumsum(d),
    "cumprod": lambda x, d, k: x.cumprod(d),
    "logcumsumexp": lambda x, d, k: x.logcumsumexp(d),
    "cummax": lambda x, d, k: x.cummax(d),
    "softmax": lambda x, d, k: x.softmax(d),
    "log_softmax": lambda x, d, k: x.log_softmax(d),
    "glu": lambda x, d, k: torch.nn.functional.glu(torch.cat([x, x * 2], d), d),
}


ALONG_LAST = {
    name: Case(lambda x, function=function: function(x, -1, False), (numbers(6, 5),))
    for name, function in ALONG.items()
}


@pytest.mark.parametrize("name", ALONG_LAST)
def test_along_the_last_dim(name: str) -> None:
    ALONG_LAST[name].check()


@pytest.mark.parametrize("name", ALONG)
def test_along_the_first_dim_which_is_kept(name: str) -> None:
    check(lambda x: ALONG[name](x, 0, True), numbers(2, 5), limit=4)


@pytest.mark.parametrize("name", ["sum", "mean", "var", "amax", "logsumexp", "norm"])
def test_along_several_dims(name: str) -> None:
    check(lambda x: ALONG[name](x, (0, 2), True), numbers(3, 2, 5))


def test_integers_and_truth_values() -> None:
    whole = torch.arange(-10, 10).reshape(5, 4)
    for function in (torch.sum, torch.prod, torch.max, lambda x: x.sum(1), lambda x: x.cumsum(0), torch.any):
        check(function, whole)
    for function in (torch.sum, torch.all, lambda x: x.sum(0), lambda x: x.any(1)):
        check(function, whole > 3)


def test_what_is_pending_is_reduced_before_it_is_cut() -> None:
    """Two halves are one, and none of each."""
    for function in (
        torch.sum,
        torch.prod,
        lambda x, dtype: x.sum(1, dtype=dtype),
        lambda x, dtype: x.cumsum(0, dtype=dtype),
    ):
        check(lambda x, function=function: function(x.detach(), dtype=torch.int64), numbers(5, 2) * 3)
        check(lambda x, function=function: function(x.detach(), dtype=torch.int8), numbers(5, 2) * 3)


def test_a_scalar() -> None:
    for function in (torch.sum, torch.mean, torch.max, lambda x: x.sum(0), lambda x: x.amax(-1)):
        check(function, torch.tensor(2.5).double())


@pytest.mark.parametrize("function", [torch.mean, torch.var, torch.sum, lambda x: x.amax((0, 1))])
@pytest.mark.parametrize("separate", [False, True])
def test_short_floats_do_not_overflow(function: object, separate: bool) -> None:
    x = torch.full((300, 300), 3.0, dtype=torch.float16)
    x[0] = 5
    with memory(separate):
        for layout in (Layout(LINE, [("x",), ()]), Layout(LINE, [(), ("x",)]), Layout.replicated(LINE, 2)):
            torch.testing.assert_close(function(laid(x, layout)).full_tensor(), function(x))


@pytest.mark.parametrize("separate", [False, True])
def test_nothing_is_gathered(separate: bool) -> None:
    """Reducing a split dim needs no more than an all-reduce of what is left."""
    with memory(separate):
        x = laid(numbers(5000, 4), Layout(LINE, [("x",), ()]))
        for function in (torch.sum, torch.mean, torch.var, torch.norm, torch.max, torch.aminmax, torch.all):
            assert moved_bytes(lambda function=function: [y + 1 for y in _several(function(x))]) <= 4 * 4 * 8
        for function in (lambda: x.mean(0) + 1, lambda: x.amax(0) + 1):
            assert set(moves(function)) <= {"all_reduce"}
        assert moved_bytes(lambda: x.sum(1) + 1) == 0
        assert moved_bytes(lambda: x.std(1) + 1) == 0
        assert moved_bytes(lambda: x.softmax(1) + 1) == 0


def _several(value: object) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("separate", [False, True])
def test_extremes_of_a_split_dim_move_what_devices_offer(separate: bool) -> None:
    x = torch.randint(0, 40, (4, 30000), generator=torch.Generator().manual_seed(0)).double()
    x[2, 150] = math.nan
    functions = (
        lambda x: x.max(1),
        lambda x: x.min(1, keepdim=True),
        lambda x: x.argmax(-1),
        lambda x: x.argmin(1, keepdim=True),
        lambda x: x[:2].argmax(),
        lambda x: x[:2].argmin(keepdim=True),
    )
    with memory(separate):
        for layout in (Layout(LINE, [(), ("x",)]), Layout(GRID, [("a",), ("b",)]), Layout(GRID, [(), ("b", "a")])):
            given = laid(x, layout)
            for function in functions:
                for ours, theirs in zip(_several(function(given)), _several(function(x)), strict=True):
                    torch.testing.assert_close(ours.full_tensor(), theirs, equal_nan=True)
            assert moved_bytes(lambda given=given: given.argmax(1)) <= 4 * 4 * 4 * 16


@pytest.mark.parametrize("separate", [False, True])
def test_running_sums_along_a_split_dim_move_totals(separate: bool) -> None:
    x = numbers(3, 301) / 9
    with memory(separate):
        for layout in (Layout(LINE, [(), ("x",)]), Layout(GRID, [("a",), ("b",)]), Layout(GRID, [(), ("b", "a")])):
            given = laid(x, layout)
            for function in (
                lambda x: x.cumsum(1),
                lambda x: x.exp().cumprod(1),
                lambda x: x.logcumsumexp(1),
                lambda x: (x > 0).cumsum(1),
                lambda x: x.cumsum(1, dtype=torch.float32),
            ):
                result = function(given)
                assert result._layout is layout
                torch.testing.assert_close(result.full_tensor(), function(x))
            assert moved_bytes(lambda given=given: given.cumsum(1)) <= 3 * 4 * 8 * 4


@pytest.mark.parametrize("separate", [False, True])
def test_reads_are_the_same_everywhere(separate: bool) -> None:
    x = numbers(4, 6)
    with memory(separate):
        for layout in (Layout(LINE, [("x",), ()]), Layout.replicated(LINE, 2)):
            y = laid(x, layout)
            assert math.isclose(y.sum().item(), x.sum().item())
            assert y.max().item() == x.max().item()
            assert torch.equal(y, laid(x, Layout(LINE, [(), ("x",)])))
            assert not torch.equal(y, y + 1)
            assert torch.allclose(y, x)
