"""Products in every layout, and what they move."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as nn

from weft.sharding.layout import Layout
from weft.sharding.mesh import make_mesh
from weft.sharding.placements import ReduceOp

from .case import Case
from .harness import check, laid, memory, moved_bytes, moves


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


PRODUCTS = {
    "mm": (torch.mm, (4, 5), (5, 6)),
    "mv": (torch.mv, (4, 5), (5,)),
    "dot": (torch.dot, (5,), (5,)),
    "vdot": (torch.vdot, (5,), (5,)),
    "outer": (torch.outer, (5,), (4,)),
    "bmm": (torch.bmm, (2, 3, 5), (2, 5, 4)),
    "matmul 3 by 2": (torch.matmul, (2, 3, 5), (5, 4)),
    "matmul 1 by 3": (torch.matmul, (5,), (2, 5, 4)),
    "matmul 4 by 4": (torch.matmul, (2, 1, 3, 5), (4, 5, 2)),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), (2, 3, 5), (2, 4, 5)),
    "einsum across": (lambda a, b: torch.einsum("bshd,hde->bse", a, b), (2, 3, 4, 2), (4, 2, 5)),
    "linear": (nn.linear, (2, 3, 5), (4, 5)),
    "transposed": (lambda a, b: a.t() @ b.t(), (5, 4), (3, 5)),
    "cdist": (torch.cdist, (4, 3), (5, 3)),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 2), (3, 2, 4), (2, 4, 5)),
}


TWO = {
    name: Case(function, (numbers(*first), numbers(*second, seed=1)))
    for name, (function, first, second) in PRODUCTS.items()
}


@pytest.mark.parametrize("name", TWO)
def test_products(name: str) -> None:
    TWO[name].check()


@pytest.mark.parametrize(
    "shapes",
    [
        ((5,), (5,)),
        ((3, 5), (5,)),
        ((5,), (2, 5, 4)),
        ((2, 3, 5), (5, 4)),
        ((2, 2, 1, 5), (2, 2, 5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)),
        ((1, 3, 5), (2, 5, 1)),
    ],
)
def test_products_that_come_whole(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """In inference mode torch does not say a product of many dims by one of few."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return torch.matmul(a, b)

    check(product, numbers(*shapes[0]), numbers(*shapes[1], seed=1), grad=False, limit=12)


ADDED = {
    "addmm, a bias": (torch.addmm, (6,), (4, 5), (5, 6)),
    "addmm, a matrix": (torch.addmm, (4, 6), (4, 5), (5, 6)),
    "addmm, a column": (torch.addmm, (4, 1), (4, 5), (5, 6)),
    "addmm, scaled": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), (6,), (4, 5), (5, 6)),
    "addmv": (torch.addmv, (4,), (4, 5), (5,)),
    "addr": (torch.addr, (4, 5), (4,), (5,)),
    "baddbmm": (torch.baddbmm, (2, 3, 4), (2, 3, 5), (2, 5, 4)),
    "baddbmm, broadcast": (torch.baddbmm, (1, 4), (2, 3, 5), (2, 5, 4)),
    "addbmm": (torch.addbmm, (3, 4), (2, 3, 5), (2, 5, 4)),
    "linear": (lambda b, x, w: nn.linear(x, w, b), (4,), (2, 3, 5), (4, 5)),
    "einsum of three": (lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), (4, 5), (5, 3), (3, 2)),
    "multi_dot": (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), (4, 5), (5, 3), (3, 2)),
}


THREE = {
    name: Case(function, tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)))
    for name, (function, *shapes) in ADDED.items()
}


@pytest.mark.parametrize("name", THREE)
def test_products_of_three(name: str) -> None:
    THREE[name].check()


FACTORS = {
    **dict.fromkeys(("addmm, a matrix", "addmv", "addr", "baddbmm", "addbmm"), ("beta", "alpha")),
    "addcmul": ("value",),
    "addcdiv": ("value",),
}
"""Ops with numbers by which something is multiplied before it is added."""


@pytest.mark.parametrize(("name", "factor"), [(name, each) for name, some in FACTORS.items() for each in some])
def test_what_is_taken_infinitely_often(name: str, factor: str) -> None:
    """Devices that would add 0, or parts of either sign, do not: infinitely often, neither is what the whole is."""
    function, *shapes = ADDED.get(name, (getattr(torch, name, None), (4, 3), (4, 3), (4, 3)))
    given = [numbers(*shape, seed=i) for i, shape in enumerate(shapes)]
    for number in (math.inf, math.nan):
        check(partial(function, **{factor: number}), *given, grad=False, limit=12)


def test_inference_mode() -> None:
    with torch.inference_mode():
        for shape in ((4,), (1,), (), (1, 4)):
            check(nn.linear, numbers(2, 3, 5), numbers(4, 5), numbers(*shape), grad=False)
        check(torch.matmul, numbers(2, 3, 5), numbers(5, 4), grad=False)
        check(lambda x: nn.layer_norm(x.reshape(6, 5), (5,)).relu().mean(), numbers(2, 3, 5), grad=False)


MESH = make_mesh({"dp": 2, "tp": 4})


def put(shape: tuple[int, ...], *splits: str | None, pending: str | None = None) -> torch.Tensor:
    waiting = {pending: ReduceOp.SUM} if pending else {}
    return laid(numbers(*shape), Layout(MESH, [(axis,) if axis else () for axis in splits], waiting))


@pytest.mark.parametrize("separate", [False, True])
def test_column_then_row_parallel_is_one_all_reduce(separate: bool) -> None:
    with memory(separate):
        x = put((8, 16, 32), "dp", None, None)
        up, down = put((128, 32), "tp", None), put((32, 128), None, "tp")
        bias, last = put((128,), "tp"), put((32,), None)
        hidden = nn.linear(x, up, bias)
        assert moved_bytes(lambda: nn.linear(x, up, bias)) == 0
        assert hidden._layout.splits == (("dp",), (), ("tp",))
        out = nn.linear(nn.gelu(hidden), down, last)
        assert out._layout.pending == (("tp", ReduceOp.SUM),)
        assert moves((x + nn.linear(nn.gelu(nn.linear(x, up, bias)), down, last)).exp) == {"all_reduce": 1}


@pytest.mark.parametrize("separate", [False, True])
def test_data_parallel_gradients_wait(separate: bool) -> None:
    """The gradient of a replicated weight is a pending sum over the split batch, resolved once, at the leaf."""
    with memory(separate):
        mesh = make_mesh({"dp": 4})
        x = laid(numbers(8, 32), Layout(mesh, [("dp",), ()]))
        w = laid(numbers(32, 16), Layout.replicated(mesh, 2)).requires_grad_()
        assert moves(lambda: (x @ w).square().sum().backward()) == {"all_reduce": 1}
        assert w.grad._layout is w._layout


@pytest.mark.parametrize("separate", [False, True])
def test_tensor_parallel_backward_is_one_all_reduce(separate: bool) -> None:
    with memory(separate):
        mesh = make_mesh({"tp": 4})
        x = laid(numbers(64, 32), Layout.replicated(mesh, 2)).requires_grad_()
        up = laid(numbers(32, 128), Layout(mesh, [(), ("tp",)])).requires_grad_()
        down = laid(numbers(128, 32), Layout(mesh, [("tp",), ()])).requires_grad_()
        y = (x @ up).relu() @ down
        grad = laid(numbers(64, 32), Layout.replicated(mesh, 2))
        assert moves(lambda: y.backward(grad)) == {"all_reduce": 1}
        assert up.grad._layout is up._layout
        assert down.grad._layout is down._layout
