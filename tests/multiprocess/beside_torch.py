"""A program in which torch's own ways to distribute meet sharded tensors: what is refused, all processes refuse, and go on."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import weft
from weft import P

COUNT = int(os.environ["WORLD_SIZE"])


def model(mesh: weft.DeviceMesh) -> torch.nn.Module:
    return weft.nn.shard_module(torch.nn.Linear(4, 4), mesh, {"weight": P("a")})


def zero(mesh: weft.DeviceMesh, x: weft.Tensor) -> None:
    """Each process would step some parameters, and take the others from whoever steps those."""
    layer = model(mesh)
    optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.SGD, lr=0.1)
    layer(x).sum().backward()
    optimizer.step()


def cases(mesh: weft.DeviceMesh, x: weft.Tensor) -> dict[str, Callable[[], object]]:
    y = x.sum()
    return {
        "all_reduce": lambda: dist.all_reduce(y),
        "all_reduce of what comes later": lambda: dist.all_reduce(y, async_op=True),
        "broadcast": lambda: dist.broadcast(x, 0),
        "all_gather": lambda: dist.all_gather([torch.zeros(()) for _ in range(COUNT)], y),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.zeros(1, 4), x),
        "distribute_tensor": lambda: distribute_tensor(x, init_device_mesh("cpu", (COUNT,)), [Shard(0)]),
        "data parallel": lambda: DistributedDataParallel(model(mesh)),
        "fully sharded": lambda: fully_shard(model(mesh), mesh=init_device_mesh("cpu", (COUNT,)))(x),
        "split optimizer": lambda: zero(mesh, x),
    }


def main() -> None:
    mesh = weft.make_mesh({"a": COUNT})
    x = weft.shard(torch.ones(COUNT, 4), mesh, P("a"))
    for name, call in cases(mesh, x).items():
        try:
            call()
        except NotImplementedError as error:
            assert "which is one value, the same in all processes" in str(error), (name, error)
            assert "weft.nn.fully_shard" in str(error), (name, error)
        else:
            raise AssertionError(f"{name} was not refused")
        assert x.sum().item() == 4 * COUNT, name
    one = torch.ones(())
    dist.all_reduce(one)  # of plain tensors they are torch's own
    assert one.item() == COUNT
    print("done")


if __name__ == "__main__":
    main()
