"""What the documents say and no other test states: one short test each."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

import weft
from weft import CPU, Accelerator, DeviceMesh, DimSpec, P
from weft.kernels import group
from weft.sharding import Partial, Placement, Replicated, Sharded, SpecEntry

MESH = weft.make_mesh({"dp": 2, "tp": 4})


def test_dim_specs_shard() -> None:
    x = weft.shard(torch.arange(16).reshape(4, 4), MESH, [DimSpec(["dp"]), DimSpec([])], {"tp"})
    assert x.local_shards[7].tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]
    assert x.mapping.to_placements() == (Sharded(0), Replicated())


def test_all_gather_without_an_axis_gathers_every_dim() -> None:
    x = weft.shard(torch.arange(16).reshape(4, 4), MESH, P("dp", "tp"))
    assert weft.all_gather(x).mapping.is_fully_replicated
    assert weft.all_gather(x, 0).mapping.spec == weft.all_gather(x, physical_axis=0).mapping.spec == P(None, "tp")
    with pytest.raises(ValueError, match="got axis=0 and physical_axis=1: give one of them"):
        weft.all_gather(x, 0, physical_axis=1)


@pytest.mark.parametrize("axes", [("dp", "tp"), ("tp", "dp")])
def test_gathering_a_dim_split_by_two_axes_keeps_the_order(axes: tuple[str, str]) -> None:
    x = torch.arange(11)
    gathered = weft.all_gather(weft.shard(x, MESH, P(axes)), 0)
    assert all(torch.equal(shard, x) for shard in gathered.local_shards)


def test_to_device_with_neither_keeps_or_takes_the_default_device() -> None:
    x = weft.shard(torch.ones(4), MESH, P("dp"))
    assert weft.to_device(x) is x
    assert weft.to_device(torch.ones(4)).mesh == DeviceMesh.single(weft.devices()[0])


def test_sharding_is_keyword_only() -> None:
    mapping = weft.NamedMapping(MESH, P("dp"))
    assert weft.to_device(torch.ones(4), sharding=mapping).mapping == mapping
    with pytest.raises(TypeError):
        weft.to_device(torch.ones(4), None, mapping)


def test_a_sharding_spec_is_a_mapping() -> None:
    spec = weft.ShardingSpec(MESH, [DimSpec(["dp"]), DimSpec([])], {"tp"})
    assert weft.to_device(np.ones((4, 2)), sharding=spec).mapping == weft.NamedMapping(MESH, P("dp", None))


def test_transfer_to_is_to_device() -> None:
    assert weft.transfer_to is weft.to_device
    assert weft.ops.transfer_to is weft.to_device


def test_shorthands_are_to_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x = weft.shard(torch.arange(5), MESH, P("tp"))
    assert weft.cpu(x).mesh == DeviceMesh.single(CPU())
    assert weft.cpu(x).tolist() == [0, 1, 2, 3, 4]
    asked = []
    monkeypatch.setattr("weft.tensor.movements.to_device", lambda _, device: asked.append(device))
    weft.gpu(x)
    weft.accelerator(x)
    weft.accelerator(x, 3)
    assert asked == [Accelerator(), Accelerator(0), Accelerator(3)]


def test_gpus_that_cannot_reach_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda here, there: False)
    with pytest.raises(ValueError, match="DistributedBroadcast: cuda:0 cannot reach the memory of cuda:1"):
        group._check_peers("DistributedBroadcast", [torch.device("cuda:0"), torch.device("cuda:1")])


def test_placements_are_one_family() -> None:
    assert all(isinstance(placement, Placement) for placement in (Replicated(), Sharded(0), Partial()))
    with pytest.raises(TypeError, match="Placement is abstract"):
        Placement()


def test_a_spec_entry_is_a_union() -> None:
    assert isinstance(SpecEntry, types.UnionType)
    assert isinstance("dp", SpecEntry.__args__[0])
