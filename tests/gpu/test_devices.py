"""Accelerators are there by number; asking for one that is not says what is."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import CPU, Accelerator, P
from weft.runtime import machine
from weft.sharding import DeviceMesh

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("many", [1, 8])
def test_as_many_as_are_asked_for(monkeypatch, many) -> None:
    monkeypatch.setenv("WEFT_VIRTUAL_ACCELERATORS", str(many))
    machine.reset()
    count = max(many, torch.cuda.device_count())
    assert weft.accelerator_count() == count
    assert weft.devices() == tuple(Accelerator(i) for i in range(count))
    with pytest.raises(ValueError, match=rf"Accelerator\({count}\) does not exist: this machine has Accelerator\(0\)"):
        weft.accelerator(torch.ones(2), count)
    with pytest.raises(ValueError, match=r"a mesh of 1000 devices was asked for, but this program has"):
        weft.make_mesh({"x": 1000})


def test_to_a_gpu_and_back() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    there = weft.gpu(x)
    assert there.mesh.devices == (Accelerator(0),)
    assert there.device.type == "cuda"
    again = weft.cpu(there)
    assert again.device.type == "cpu"
    assert torch.equal(again.full_tensor(), x)
    assert weft.accelerator(there, 3).mesh.devices == (Accelerator(3),)


def test_gradients_come_back_from_a_gpu() -> None:
    x = torch.arange(6.0, requires_grad=True)
    (weft.gpu(x) ** 2).sum().backward()
    assert x.grad.device.type == "cpu"
    assert torch.equal(x.grad, 2 * x.detach())


def test_one_gpu_may_stand_in_a_mesh_many_times(memory) -> None:
    mesh = DeviceMesh([Accelerator(0)] * 8, (2, 4), ("dp", "tp"))
    x, w = torch.randn(6, 8, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64)
    y = weft.shard(x, mesh, P("dp", "tp")) @ weft.shard(w, mesh, P("tp", None))
    assert all(shard.is_cuda for shard in y.local_shards)
    torch.testing.assert_close(y.full_tensor().cpu(), x @ w)


def test_the_host_is_still_there() -> None:
    mesh = weft.make_mesh({"x": 4}, devices=[CPU(i) for i in range(4)])
    y = weft.shard(torch.arange(8.0), mesh, P("x"))
    assert not any(shard.is_cuda for shard in y.local_shards)
