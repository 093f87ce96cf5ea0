"""Reductions of nothing: in any layout they are what plain torch says, 0, 1, nan or -inf, or raise as it does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from weft.tensor.tensor import Tensor

from .harness import GRID, LINE, flat, laid, layouts, memory

Reduction = Callable[[torch.Tensor], object]
SHAPES = [(0,), (0, 3), (4, 0), (2, 0, 3)]


def reductions() -> dict[str, Reduction]:
    """By name, over all, one or several dims, which stay or go."""
    found: dict[str, Reduction] = {}
    for name in [
        "sum",
        "mean",
        "prod",
        "amax",
        "amin",
        "max",
        "min",
        "all",
        "any",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "nansum",
        "nanmean",
        "median",
        "nanmedian",
        "argmax",
        "argmin",
        "count_nonzero",
        "norm",
    ]:
        found[name] = getattr(torch, name)
    for name in [
        "sum",
        "mean",
        "prod",
        "amax",
        "amin",
        "max",
        "min",
        "all",
        "any",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "logsumexp",
        "nansum",
        "nanmean",
        "median",
        "nanmedian",
        "argmax",
        "argmin",
        "mode",
        "aminmax",
        "norm",
    ]:
        op = getattr(torch, name)
        found[f"{name} of the last dim"] = lambda x, op=op: op(x, dim=-1)
        found[f"{name} of the first dim, which stays"] = lambda x, op=op: op(x, dim=0, keepdim=True)
    for name in ["sum", "mean", "amax", "var", "std", "logsumexp", "nansum", "all", "any"]:
        found[f"{name} of two dims"] = lambda x, op=getattr(torch, name): op(x, dim=(0, -1) if x.dim() > 1 else 0)
    for order in (0, 1, 2, 3, math.inf, -math.inf, -1):
        found[f"vector_norm {order}"] = lambda x, order=order: torch.linalg.vector_norm(x, order)
        found[f"vector_norm {order} of a dim"] = lambda x, order=order: torch.linalg.vector_norm(x, order, dim=0)
    found |= {
        "cumsum": lambda x: x.cumsum(0),
        "cummax": lambda x: x.cummax(-1),
        "softmax": lambda x: x.softmax(0),
        "sort": lambda x: x.sort(-1),
        "kthvalue": lambda x: x.kthvalue(1),
        "topk": lambda x: x.topk(0),
        "mse_loss": lambda x: functional.mse_loss(x, x),
        "cross_entropy": lambda x: functional.cross_entropy(x, torch.zeros(x.shape[0], *x.shape[2:]).long()),
        "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
        "dim out of range": lambda x: x.mean(3),
        "dim named twice": lambda x: x.sum((0, 0)),
    }
    return found


REDUCTIONS = reductions()
Outcome = list[object] | Exception


def outcome(reduce: Reduction, x: torch.Tensor) -> Outcome:
    try:
        return [y.full_tensor() if isinstance(y, Tensor) else y for y in flat(reduce(x))]
    except (RuntimeError, IndexError, ValueError, NotImplementedError) as error:
        return error


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", REDUCTIONS)
def test_of_nothing_there_is_what_torch_says(name: str) -> None:
    for shape in SHAPES:
        x = torch.zeros(shape)
        plain = outcome(REDUCTIONS[name], x)
        for separate in (True, False):
            with memory(separate):
                for layout in (*layouts(LINE, x.dim()), *layouts(GRID, x.dim())[::5]):
                    ours = outcome(REDUCTIONS[name], laid(x, layout))
                    told = f"{shape} in {layout}, {'separate' if separate else 'one'} memory: {ours}, not {plain}"
                    if isinstance(plain, Exception):
                        assert isinstance(ours, type(plain)), told
                    else:
                        assert not isinstance(ours, Exception), told
                        torch.testing.assert_close(ours, plain, rtol=0, atol=0, equal_nan=True, msg=told)


@pytest.mark.parametrize("separate", [False, True])
def test_the_sum_of_nothing_stays_split(separate: bool) -> None:
    with memory(separate):
        x = laid(torch.zeros(0, 6), layouts(LINE, 2)[2])
        assert x._layout.splits == ((), ("x",))
        assert x.sum(0)._layout.splits == (("x",),)


@pytest.mark.parametrize("separate", [True, False])
def test_distances_of_no_rows_have_an_empty_gradient(separate: bool) -> None:
    """Of plain tensors, torch's kernel divides by zero, and the interpreter ends."""
    with memory(separate):
        for layout in layouts(LINE, 2, pending=False):
            x = laid(torch.zeros(0, 3), layout).requires_grad_()
            for _ in range(3):  # the second call repeats the first
                (gradient,) = torch.autograd.grad(functional.pdist(x).sum(), x)
                assert gradient.shape == (0, 3)
