"""Convolution, pooling and resampling in every layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as nn

from weft.sharding.layout import Layout
from weft.sharding.placements import ReduceOp

from .case import Case
from .harness import GRID, LINE, check, laid, memory, moved_bytes


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CONVOLUTIONS = {
    "1d": (nn.conv1d, (5, 4, 6), (6, 4, 3), (6,)),
    "2d": (lambda x, w, b: nn.conv2d(x, w, b, stride=2, padding=1), (2, 4, 5, 5), (3, 4, 3, 3), (3,)),
    "3d": (nn.conv3d, (2, 2, 3, 3, 3), (4, 2, 2, 2, 2), (4,)),
    "without bias": (lambda x, w: nn.conv1d(x, w, padding="same"), (2, 4, 6), (5, 4, 3)),
    "one sample": (nn.conv1d, (4, 6), (6, 4, 3), (6,)),
    "groups": (lambda x, w, b: nn.conv1d(x, w, b, groups=2), (2, 4, 6), (6, 2, 3), (6,)),
    "depthwise": (lambda x, w, b: nn.conv2d(x, w, b, groups=4), (2, 4, 4, 4), (4, 1, 3, 3), (4,)),
    "transposed": (lambda x, w, b: nn.conv_transpose2d(x, w, b, stride=2), (2, 4, 3, 3), (4, 3, 2, 2), (3,)),
    "transposed groups": (lambda x, w, b: nn.conv_transpose1d(x, w, b, groups=2), (2, 4, 6), (4, 3, 3), (6,)),
}


CASES = {
    name: Case(function, tuple(numbers(*shape, seed=i) for i, shape in enumerate(shapes)))
    for name, (function, *shapes) in CONVOLUTIONS.items()
}


@pytest.mark.parametrize("name", CASES)
def test_convolution(name: str) -> None:
    CASES[name].check()


POOLS = {
    "max 1d": (lambda x: nn.max_pool1d(x, 2), (2, 3, 6)),
    "max 2d": (lambda x: nn.max_pool2d(x, 2), (2, 3, 4, 4)),
    "max 2d of one": (lambda x: nn.max_pool2d(x, 2), (3, 4, 4)),
    "max 3d": (lambda x: nn.max_pool3d(x, 2), (2, 3, 2, 4, 2)),
    "average 1d": (lambda x: nn.avg_pool1d(x, 2), (2, 3, 6)),
    "average 2d": (lambda x: nn.avg_pool2d(x, 3, 1, 1), (5, 2, 4, 4)),
    "average 3d": (lambda x: nn.avg_pool3d(x, 2), (2, 3, 2, 4, 2)),
    "adaptive average": (lambda x: nn.adaptive_avg_pool2d(x, 3), (2, 3, 5, 4)),
    "global average": (lambda x: nn.adaptive_avg_pool2d(x, 1), (2, 3, 5, 4)),
    "adaptive max": (lambda x: nn.adaptive_max_pool2d(x, 2), (2, 3, 5, 4)),
    "nearest": (lambda x: nn.interpolate(x, scale_factor=2), (2, 3, 3, 2)),
    "nearest 1d": (lambda x: nn.interpolate(x, size=7), (2, 3, 3)),
    "bilinear": (lambda x: nn.interpolate(x, size=(5, 4), mode="bilinear"), (2, 3, 3, 2)),
    "bicubic": (lambda x: nn.interpolate(x, scale_factor=2, mode="bicubic"), (2, 3, 3, 2)),
    "trilinear": (lambda x: nn.interpolate(x, scale_factor=2, mode="trilinear"), (2, 2, 2, 2, 2)),
    "pixel shuffle": (lambda x: nn.pixel_shuffle(x, 2), (2, 4, 3, 2)),
    "unfold": (lambda x: nn.unfold(x, 2), (2, 3, 4, 4)),
    "unfold of one": (lambda x: nn.unfold(x, 2), (4, 3, 3)),
    "fold": (lambda x: nn.fold(x, (3, 3), 2), (2, 16, 4)),
    "local response": (lambda x: nn.local_response_norm(x, 3), (2, 4, 5)),
    "grid sample 3d": (
        lambda x: nn.grid_sample(x, torch.zeros(2, 2, 3, 3, 3).double() + 0.3, align_corners=False),
        (2, 3, 2, 2, 2),
    ),
    "grid sample": (
        lambda x: nn.grid_sample(x, torch.zeros(2, 3, 3, 2).double() + 0.3, align_corners=False),
        (2, 3, 4, 4),
    ),
}


OVER_SPACE = {
    name: Case(function, (numbers(*shape),), pending=name not in ("max 1d", "adaptive max"))
    for name, (function, shape) in POOLS.items()
}


@pytest.mark.parametrize("name", OVER_SPACE)
def test_pools(name: str) -> None:
    OVER_SPACE[name].check()


def test_samples_at_points() -> None:
    check(lambda x, grid: nn.grid_sample(x, grid, align_corners=False), numbers(2, 3, 4, 4), numbers(2, 3, 2, 2) / 2)


@pytest.mark.parametrize("separate", [False, True])
def test_windows_of_split_channels_move_nothing(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(4, 4, 5, 5), Layout(GRID, [("a",), ("b",), (), ()]))
        columns = nn.unfold(x, 2)
        assert moved_bytes(lambda: nn.fold(nn.unfold(x, 2), (5, 5), 2)) == 0
        assert columns._layout.splits == (("a",), ("b",), ())
        points = laid(numbers(4, 3, 3, 2), Layout(GRID, [("a",), (), (), ()]))
        assert moved_bytes(lambda: nn.grid_sample(x, points, align_corners=False)) == 0


@pytest.mark.parametrize("separate", [False, True])
def test_what_convolutions_move(separate: bool) -> None:
    with memory(separate):
        x = laid(numbers(4, 4, 5, 5), Layout(GRID, [("a",), (), (), ()])).requires_grad_()
        out_split = laid(numbers(6, 4, 3, 3), Layout(GRID, [("b",), (), (), ()])).requires_grad_()
        assert moved_bytes(lambda: nn.conv2d(x, out_split)) == 0
        assert nn.conv2d(x, out_split)._layout.splits == (("a",), ("b",), (), ())
        y = laid(numbers(4, 4, 5, 5), Layout(LINE, [(), ("x",), (), ()]))
        in_split = laid(numbers(6, 4, 3, 3), Layout(LINE, [(), ("x",), (), ()]))
        assert moved_bytes(lambda: nn.conv2d(y, in_split)) == 0
        assert nn.conv2d(y, in_split)._layout.pending == (("x", ReduceOp.SUM),)
        assert moved_bytes(lambda: nn.max_pool2d(nn.avg_pool2d(y, 2), 2)) == 0
