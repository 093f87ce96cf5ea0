"""Elementwise ops in every layout."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as nn

import weft
from weft.sharding.layout import Layout
from weft.sharding.placements import ReduceOp

from .case import Case
from .harness import GRID, LINE, check, laid, layouts, memory, moved_bytes

SHAPE = (6, 7)  # the first dim splits evenly, the second does not


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


UNARY = {
    "relu": torch.relu,
    "gelu": nn.gelu,
    "tanh gelu": lambda x: nn.gelu(x, approximate="tanh"),
    "silu": nn.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "logsigmoid": nn.logsigmoid,
    "softplus": nn.softplus,
    "elu": nn.elu,
    "leaky_relu": nn.leaky_relu,
    "hardswish": nn.hardswish,
    "hardtanh": nn.hardtanh,
    "hardsigmoid": nn.hardsigmoid,
    "mish": nn.mish,
    "exp": torch.exp,
    "log of the square": lambda x: (x * x).log(),
    "abs": torch.abs,
    "square": torch.square,
    "pow": lambda x: x**3,
    "reciprocal": lambda x: 1 / x,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "sqrt": lambda x: x.abs().sqrt(),
    "negative": lambda x: -x,
    "scaled": lambda x: 3 * x / 7,
    "a number added once": lambda x: x + 1,
    "a number subtracted once": lambda x: x - 2.5,
    "subtracted from a number": lambda x: 1 - x,
    "compared": lambda x: x > 0,
    "rounded": lambda x: x.round(),
    "to float": lambda x: x.float(),
    "to integers": lambda x: (3 * x).to(torch.int64),
    "to truth": lambda x: x.bool(),
    "copied": lambda x: x.clone(),
    "masked": lambda x: x.masked_fill(x > 0, 2.0),
    "clipped by where": lambda x: torch.where(x > 0, x, 3.0),
    "nan_to_num": torch.nan_to_num,
    "sign": torch.sign,
    "erf": torch.erf,
    "logit": lambda x: torch.logit(x.sigmoid()),
}


ONE = {name: Case(function, (numbers(*SHAPE),), atol=1e-8) for name, function in UNARY.items()}
ONE["to float"] = replace(ONE["to float"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ONE)
def test_unary(name: str) -> None:
    ONE[name].check()


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "weighted sum": lambda x, y: torch.add(x, y, alpha=3),
    "mul": torch.mul,
    "div": lambda x, y: x / (y * y + 1),
    "floor_divide": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "where": lambda x, y: torch.where(x.detach() > 0, x, y),
    "a fixed condition": lambda x, y: torch.where(torch.tensor([True, False, True, False, True, False, True]), x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y * y + 1, value=0.5),
    "prelu": lambda x, y: nn.prelu(x, y.flatten()[0]),
    "compared": lambda x, y: x < y,
    "hypot": torch.hypot,
    "pow": lambda x, y: (x * x + 0.1) ** y,
}


SHAPES = {"": (SHAPE, SHAPE), ", a row": (SHAPE, (7,)), ", broadcast": ((3, 1, 7), (5, 1))}
TWO = {
    name + kind: Case(
        function,
        (numbers(*first), numbers(*second, seed=1)),
        limit=5,
        pending=name not in ("floor_divide", "compared"),
    )
    for name, function in BINARY.items()
    for kind, (first, second) in SHAPES.items()
}


@pytest.mark.parametrize("name", TWO)
def test_binary(name: str) -> None:
    TWO[name].check()


def test_three_tensors() -> None:
    check(torch.addcmul, numbers(4, 6), numbers(6, seed=1), numbers(4, 1, seed=2))
    check(torch.addcdiv, numbers(4, 6), numbers(6, seed=1), numbers(4, 1, seed=2) + 5)
    check(torch.lerp, numbers(4, 6), numbers(6, seed=1), numbers(4, 1, seed=2))


def test_integers_and_truth_values() -> None:
    whole = torch.arange(-10, 10).reshape(5, 4)
    for function in (
        lambda x: x + x,
        lambda x: x * 2,
        lambda x: x / 2,
        lambda x: x // 2,
        lambda x: x + True,
        lambda x: x & 3,
    ):
        check(function, whole)
    truth = whole > 0
    for function in (torch.logical_not, lambda x: x + x, lambda x: x * 2, lambda x: x.double()):
        check(function, truth)


def test_complex_numbers() -> None:
    x = torch.complex(numbers(4, 6), numbers(4, 6, seed=1))
    for function in (
        lambda x: x * (2 + 1j),
        lambda x: x.conj() * 2,
        torch.abs,
        lambda x: x.real,
        torch.view_as_real,
    ):
        check(function, x)


def test_the_empty_and_the_single() -> None:
    for shape in ((), (1,), (0,), (2, 0), (1, 3)):
        check(lambda x: (x + 1) * x, numbers(*shape))


PENDING = Layout(LINE, [(), ()], {"x": ReduceOp.SUM})
LINEAR = {
    "sum of two": lambda x, w: x + x,
    "sum with another": lambda x, w: x + w,
    "difference": lambda x, w: w - x,
    "scaled": lambda x, w: -x * 3 / 4,
    "multiplied": lambda x, w: w * x,
    "divided": lambda x, w: x / w,
    "picked": lambda x, w: torch.where(w > 0, x, w),
    "interpolated": lambda x, w: torch.lerp(x, w, 0.5),
    "product added": lambda x, w: torch.addcmul(w, x, w),
    "converted": lambda x, w: x.to(torch.complex128).real,
}


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_pending_sums_pass_through_linear_ops(name: str, separate: bool) -> None:
    with memory(separate):
        x, w = laid(numbers(4, 6), PENDING), laid(numbers(4, 6, seed=1), Layout.replicated(LINE, 2))
        assert moved_bytes(lambda: LINEAR[name](x, w)) == 0
        assert LINEAR[name](x, w)._layout is PENDING


@pytest.mark.parametrize("separate", [False, True])
def test_a_pending_sum_is_resolved_before_it_is_expanded_and_once_for_all_its_views(separate: bool) -> None:
    x, w = numbers(4, 1), numbers(4, 600, seed=1)
    with memory(separate):
        pending = laid(x, Layout(LINE, [(), ()], {"x": ReduceOp.SUM}))
        split = laid(w, Layout(LINE, [(), ("x",)]))
        wide = pending.expand(4, 600)
        with weft.comm_log() as log:
            torch.testing.assert_close((wide * split).full_tensor(), x * w)
            torch.testing.assert_close(pending.t().exp().full_tensor(), x.t().exp())
        assert [record.total_bytes for record in log if record.implicit and record.total_bytes] == [4 * 8 * 4]


@pytest.mark.parametrize("separate", [False, True])
def test_a_write_to_a_pending_sum_resolves_it_once(separate: bool) -> None:
    x = numbers(4, 6)
    with memory(separate):
        pending = laid(x, PENDING)
        with weft.comm_log() as log:
            pending.add_(1.0)
            torch.testing.assert_close(pending.exp().full_tensor(), (x + 1).exp())
            assert pending._layout is PENDING
            pending.mul_(2.0)
            torch.testing.assert_close((pending + 1).full_tensor(), (x + 1) * 2 + 1)
        assert log.counts().get("all_reduce") == 2


@pytest.mark.parametrize("separate", [False, True])
def test_one_layout_moves_nothing(separate: bool) -> None:
    with memory(separate):
        for layout in layouts(GRID, 2, pending=False):
            x, y = (laid(numbers(4, 6, seed=i), layout) for i in (0, 1))
            assert moved_bytes(lambda x=x, y=y: torch.relu(x * y + 1).exp() - y) == 0


@pytest.mark.parametrize("separate", [False, True])
def test_gradients_of_activations_keep_pending_sums(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(4, 6), Layout.replicated(LINE, 2))
        grad = laid(numbers(4, 6, seed=1), PENDING)
        backward = torch.ops.aten.threshold_backward, torch.ops.aten.gelu_backward, torch.ops.aten.silu_backward
        for op, rest in zip(backward, ((0,), (), ()), strict=True):
            assert op(grad, x, *rest)._layout is PENDING


NAMED_FIRST = """
import sys, torch
if "first" in sys.argv:
    torch.ops.aten.rrelu, torch.ops.aten.float_power, torch.ops.aten.equal
import weft
x = weft.shard(torch.ones(4, 4), weft.make_mesh({"x": 2}), weft.P("x"))
with torch.inference_mode():
    print(torch.rrelu(x, training=True).mapping.spec, torch.float_power(x, 2).mapping.spec, torch.equal(x, x))
"""


def test_layouts_do_not_depend_on_which_ops_were_named_before_the_rules_were_read() -> None:
    """Torch makes its ops when they are first named."""
    said = {subprocess.check_output([sys.executable, "-c", NAMED_FIRST, *first]) for first in ((), ("first",))}
    assert said == {b"P(None, None) P('x', None) True\n"}
