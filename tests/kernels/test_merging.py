"""What queries see of some keys and of others is merged in one launch, and is what torch's ops give."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.participants import DEVICE
from weft.handlers.attention.merging import merge_into
from weft.kernels.merging import merge_seen_into
from weft.runtime import accelerator_kernels

SHAPES = [(1, 1, 1, 1), (2, 3, 5, 8), (1, 2, 70, 24), (2, 2, 33, 128)]


def seen(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A result of attention and its logarithms, some of them of nothing."""
    generator = torch.Generator().manual_seed(seed)
    out, rows = torch.randn(shape, generator=generator), 4 * torch.randn(shape[:3], generator=generator)
    rows[torch.rand(shape[:3], generator=generator) < 0.2] = -math.inf
    out[rows == -math.inf] = 0
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return out.to(DEVICE, dtype), rows.to(DEVICE, wide)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_launch_gives_what_ops_give(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch) -> None:
    (out, known), (more, rows) = seen(shape, dtype, 0), seen(shape, dtype, 1)
    out = out.to(known.dtype)
    expected = out.clone(), known.clone()
    monkeypatch.setattr(accelerator_kernels, "_DEVICES", frozenset())
    merge_into(*expected, more, rows, may_be_hidden=True)
    merge_seen_into(out, known, more, rows)
    torch.testing.assert_close((out, known), expected)
    assert not out.isnan().any()


def test_parts_of_larger_tensors(monkeypatch) -> None:
    """Some of the queries, and heads that lie side by side in memory, by the way that attention takes."""
    (out, known), (more, rows) = seen((2, 6, 8, 16), torch.float32, 0), seen((2, 6, 4, 16), torch.float32, 1)
    out, more = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (out, more))
    expected = out.clone(), known.clone()
    monkeypatch.setattr(accelerator_kernels, "_DEVICES", frozenset())
    merge_into(*(x[:, :, 2:6] for x in expected), more, rows, may_be_hidden=True)
    monkeypatch.setattr(accelerator_kernels, "_DEVICES", frozenset({torch.device(DEVICE).type}))
    used: list[object] = []
    kernel = accelerator_kernels._kernel
    monkeypatch.setattr(accelerator_kernels, "_kernel", lambda name: used.append(name) or kernel(name))
    merge_into(out[:, :, 2:6], known[:, :, 2:6], more, rows, may_be_hidden=True)
    assert len(used) == 1
    torch.testing.assert_close((out, known), expected)
