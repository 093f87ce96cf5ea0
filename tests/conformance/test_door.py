"""Every name that the design promises at the door is there, and what the door lists can be had."""

from __future__ import annotations

import inspect

import pytest

import weft

PROMISED = {
    "weft": """
        Tensor DeviceMesh make_mesh mesh_context P DimSpec Replicated Sharded Partial Placement ReduceOp
        DeviceMapping NamedMapping PlacementMapping CPU Accelerator devices local_devices accelerator_count
        shard reshard all_gather all_reduce reduce_scatter all_to_all ppermute distributed_broadcast
        to_device transfer_to cpu gpu accelerator
        tensor zeros ones full arange rand randn from_local
        plan explain comm_log trace visualize reshard_policy local_map on_main
        DistributedTensorType TensorLayout
        sharding graph distributed nn checkpoint kernels ops
    """,
    "weft.sharding": """
        DeviceMesh Partial Placement ReduceOp Replicated Sharded DeviceMapping NamedMapping PlacementMapping SpecEntry
        DistributedBufferType DistributedTensorType DistributedType TensorLayout ConversionError
        global_shape_from_local local_shard_shape_from_global shard_shape
        DimSpec P make_mesh mesh_context
    """,
    "weft.graph": "Graph TensorType BufferType DeviceRef TensorValue BufferValue Dim Shape Signals ops",
    "weft.graph.ops": """
        distributed_broadcast transfer_to allgather shard_and_stack allreduce reducescatter alltoall ppermute
        matmul add softmax relu layer_norm embedding reshape
    """,
    "weft.distributed": "init shutdown",
    "weft.nn": "shard_module",
    "weft.Tensor": "mapping mesh placements local_shards is_distributed full_tensor numpy redistribute",
}

SIGNATURES = {
    "weft.DeviceMesh": "devices mesh_shape axis_names",
    "weft.PlacementMapping": "mesh placements",
    "weft.NamedMapping": "mesh spec unreduced priorities memory_kind",
    "weft.Sharded": "axis",
    "weft.Partial": "reduce_op",
    "weft.DistributedTensorType": "dtype shape mesh placements",
    "weft.TensorLayout": "dtype shape mapping",
    "weft.sharding.shard_shape": "global_shape placements mesh_shape",
    "weft.sharding.local_shard_shape_from_global": "global_shape mesh placements",
    "weft.sharding.global_shape_from_local": "local_shape mesh placements",
    "weft.distributed.init": "backend timeout devices_per_process",
    "weft.nn.shard_module": "module mesh patterns",
}


def found(where: str) -> object:
    value: object = weft
    for part in where.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("where", PROMISED)
def test_the_names_are_there(where: str) -> None:
    home = found(where)
    assert [name for name in PROMISED[where].split() if not hasattr(home, name)] == []


@pytest.mark.parametrize("where", SIGNATURES)
def test_constructors_take_what_they_are_said_to(where: str) -> None:
    names = SIGNATURES[where].split()
    assert list(inspect.signature(found(where)).parameters)[: len(names)] == names


def test_what_the_door_lists_can_be_had() -> None:
    assert [name for name in weft.__all__ if not hasattr(weft, name)] == []
    assert set(weft.__all__) <= set(dir(weft))


def test_a_name_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'no_such_name'"):
        _ = weft.no_such_name
