"""A mesh of CPUs and GPUs holds and computes what any other does."""

from __future__ import annotations

import itertools

import pytest
import torch

import weft
from weft import CPU, Accelerator, P
from weft.sharding import DeviceMesh

pytestmark = pytest.mark.gpu

MIXED = DeviceMesh([CPU(0), Accelerator(0), Accelerator(1), CPU(1)], (2, 2), ("a", "b"))
LINE = DeviceMesh([CPU(0), Accelerator(0), CPU(1), Accelerator(1), Accelerator(2)], (5,), ("c",))
GPUS = DeviceMesh([Accelerator(i) for i in range(4)], (4,), ("g",))
CPUS = DeviceMesh([CPU(i) for i in range(3)], (3,), ("h",))

LAYOUTS = [
    *((MIXED, spec) for spec in (P(), P("a"), P("b", "a"), P(("a", "b")), P(None, ("b", "a")))),
    *((LINE, spec) for spec in (P(), P("c"), P(None, "c"))),
    *((GPUS, spec) for spec in (P(), P("g"))),
    *((CPUS, spec) for spec in (P(), P(None, "h"))),
]


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_moving_keeps_the_value(memory, where) -> None:
    x = torch.arange(42.0, device=where).reshape(6, 7)
    for (first, one), (second, other) in itertools.product(LAYOUTS, LAYOUTS):
        y = weft.shard(weft.shard(x, first, one), second, other)
        assert torch.equal(y.full_tensor().cpu(), x.cpu()), (first, one, second, other)
        for device, shard in zip(second.devices, y.local_shards, strict=True):
            assert shard.is_cuda == isinstance(device, Accelerator)


@pytest.mark.parametrize("mesh", [MIXED, LINE], ids=str)
def test_it_computes_what_plain_torch_does(memory, mesh) -> None:
    x, w = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    specs = [P(), P(mesh.axis_names[0]), P(None, mesh.axis_names)]
    for one, other in itertools.product(specs, specs):
        a = weft.shard(x, mesh, one).requires_grad_()
        b = weft.shard(w, mesh, other).requires_grad_()
        plain, weights = x.clone().requires_grad_(), w.clone().requires_grad_()
        loss = ((a @ b).relu() + 1).log().sum()
        expected = ((plain @ weights).relu() + 1).log().sum()
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss.full_tensor().cpu(), expected.detach().cpu())
        torch.testing.assert_close(a.grad.full_tensor().cpu(), plain.grad)
        torch.testing.assert_close(b.grad.full_tensor().cpu(), weights.grad)


def test_reductions_resolve(memory) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    y = weft.shard(x, MIXED, P("a", "b"))
    assert torch.equal(weft.all_reduce(y).full_tensor().cpu(), x[:2, :3] + x[:2, 3:] + x[2:, :3] + x[2:, 3:])
    assert torch.equal(y.sum(0).full_tensor().cpu(), x.sum(0))
    assert y.max().item() == 23
