"""Copies to, from and between GPUs carry the value of the moment they were asked for."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import P
from weft.runtime.memory import accelerator
from weft.sharding import make_mesh

pytestmark = pytest.mark.gpu

SIZE = 4096


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()], ids=str)
def test_a_split_host_tensor_may_be_written_to_at_once(memory, pinned, spec) -> None:
    mesh = make_mesh({"x": 8})
    plain = torch.arange(float(SIZE * SIZE)).reshape(SIZE, SIZE)
    plain = plain.pin_memory() if pinned else plain
    expected = plain.clone()
    x = weft.shard(plain, mesh, spec)
    plain.fill_(-1)
    assert torch.equal(x.full_tensor().cpu(), expected)


def test_strided_slices_go_up_in_one_piece() -> None:
    x = torch.arange(60.0).reshape(6, 10)
    for part in (x[:, 2:5], x.T, x[::2, ::3], x[:0], x[1]):
        there = accelerator.brought(part, torch.device("cuda", 0))
        assert there.is_contiguous()
        assert torch.equal(there.cpu(), part)


def test_through_pinned_memory_where_peers_cannot_reach_each_other(monkeypatch) -> None:
    source = torch.randn(1000, 1000, device="cuda")
    target = torch.empty(1000, 1000, device="cuda")
    monkeypatch.setattr(accelerator, "reaches", lambda one, other: False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = source * 2
        accelerator.copy(target, expected)
        result = target + 1
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(result, source * 2 + 1)
