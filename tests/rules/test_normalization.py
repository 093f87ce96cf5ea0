"""Normalizations in every layout, and what they move."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

import weft
from weft.sharding.layout import Layout

from .case import Case
from .harness import GRID, LINE, check, laid, memory, moved_bytes, moves


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def batch_norm(x: torch.Tensor, w: torch.Tensor | None = None, b: torch.Tensor | None = None) -> torch.Tensor:
    return nn.batch_norm(x, None, None, w, b, training=True)


NORMS = {
    "softmax, first dim": (lambda x: x.softmax(0), (2, 5, 4)),
    "softmax": (lambda x: x.softmax(1), (2, 5, 4)),
    "softmax, last dim": (lambda x: x.softmax(2), (2, 5, 4)),
    "log_softmax, first dim": (lambda x: x.log_softmax(0), (2, 5, 4)),
    "log_softmax": (lambda x: x.log_softmax(1), (2, 5, 4)),
    "log_softmax, last dim": (lambda x: x.log_softmax(2), (2, 5, 4)),
    "softmin": (lambda x: nn.softmin(x, 1), (2, 5, 4)),
    "layer_norm, no scale": (lambda x: nn.layer_norm(x, (4,)), (2, 5, 4)),
    "layer_norm, no shift": (lambda x, w: nn.layer_norm(x, (4,), w), (2, 5, 4), (4,)),
    "layer_norm": (lambda x, w, b: nn.layer_norm(x, (4,), w, b), (2, 5, 4), (4,), (4,)),
    "layer_norm over two dims": (lambda x, w, b: nn.layer_norm(x, (3, 4), w, b), (2, 3, 4), (3, 4), (3, 4)),
    "rms_norm": (lambda x, w: nn.rms_norm(x, (4,), w), (2, 5, 4), (4,)),
    "group_norm, no scale": (lambda x: nn.group_norm(x, 2), (5, 4, 3)),
    "group_norm": (lambda x, w, b: nn.group_norm(x, 2, w, b), (2, 4, 3), (4,), (4,)),
    "group_norm of images": (lambda x, w, b: nn.group_norm(x, 4, w, b), (2, 8, 2, 2), (8,), (8,)),
    "instance_norm": (nn.instance_norm, (2, 4, 5)),
    "batch_norm of rows, no scale": (batch_norm, (5, 4)),
    "batch_norm of rows": (batch_norm, (5, 4), (4,), (4,)),
    "batch_norm, no scale": (batch_norm, (4, 4, 3)),
    "batch_norm": (batch_norm, (4, 4, 3), (4,), (4,)),
    "batch_norm of images": (batch_norm, (2, 3, 2, 2), (3,), (3,)),
}
CASES = {
    name: Case(function, tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)))
    for name, (function, *shapes) in NORMS.items()
}
CASES["batch_norm, fixed statistics"] = Case(
    lambda x, m, v, w, b: nn.batch_norm(x, m.detach(), v.detach(), w, b, training=False),
    (numbers(5, 4, 3), numbers(4), numbers(4).square() + 1, numbers(4), numbers(4)),
    pending=False,
    limit=5,
)


@pytest.mark.parametrize("name", CASES)
def test_norms(name: str) -> None:
    CASES[name].check()


@pytest.mark.parametrize("separate", [False, True])
def test_batch_norm_keeps_running_statistics(separate: bool) -> None:
    x = numbers(5, 4, 3)
    plain = torch.nn.BatchNorm1d(4).double()
    plain(x)
    with memory(separate):
        for layout in (Layout(LINE, [("x",), (), ()]), Layout.replicated(LINE, 3), Layout(LINE, [(), ("x",), ()])):
            module = torch.nn.BatchNorm1d(4).double()
            for name, value in [*module.named_buffers(), *module.named_parameters()]:
                if value.dim():
                    table = module._buffers if name in module._buffers else module._parameters
                    new = laid(value, Layout.replicated(LINE, 1))
                    table[name] = new if name in module._buffers else torch.nn.Parameter(new)
            module(laid(x, layout))
            torch.testing.assert_close(module.running_mean.full_tensor(), plain.running_mean)
            torch.testing.assert_close(module.running_var.full_tensor(), plain.running_var)


@pytest.mark.parametrize("separate", [False, True])
def test_a_split_batch_moves_nothing(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(4, 6, 8), Layout(GRID, [("a",), ("b",), ()])).requires_grad_()
        w = laid(numbers(8), Layout.replicated(GRID, 1)).requires_grad_()
        assert moved_bytes(lambda: nn.layer_norm(x, (8,), w, w)) == 0
        assert moved_bytes(lambda: nn.rms_norm(x, (8,), w)) == 0
        assert moved_bytes(lambda: x.softmax(-1)) == 0
        out = nn.layer_norm(x, (8,), w, w)
        assert out._layout is x._layout
        assert moves(lambda: out.sum().backward()).keys() <= {"all_reduce"}


def test_batch_norm_by_the_name_that_it_has_on_gpus() -> None:
    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        name = "cudnn_batch_norm" if isinstance(x, weft.Tensor) else "native_batch_norm"
        return getattr(torch, name)(x, w, b, None, None, True, 0.1, 1e-5)[0]

    check(norm, numbers(5, 4, 3), numbers(4), numbers(4), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("separate", [False, True])
def test_batch_norm_of_a_split_batch_reduces_statistics_only(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(64, 4, 5), Layout(LINE, [("x",), (), ()]))
        w = laid(numbers(4), Layout.replicated(LINE, 1))
        assert moves(lambda: nn.batch_norm(x, None, None, w, w, training=True)).keys() == {"all_reduce"}
