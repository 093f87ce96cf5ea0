"""The same ops and models by DTensor, in one process on a mesh of one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from tempfile import mkdtemp

import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    DeviceMesh,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel


@cache
def alone() -> DeviceMesh:
    """A mesh of one process, this one."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=f"file://{mkdtemp()}/store", rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def op(call: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], object]]:
    """An op on two tensors, the first split by rows."""
    one, other = (distribute_tensor(value, alone(), [Shard(0)]) for value in (x, y))
    return {"DTensor": lambda: call(one, other)}


def model(plain: torch.nn.Module) -> torch.nn.Module:
    """The same model with DTensors for parameters."""
    return distribute_module(copy.deepcopy(plain), alone())


def with_known_attention(call: Callable[[], object]) -> Callable[[], object]:
    """A call whose attention is matmuls and a softmax: DTensor knows no layout for the fused kernel of CPUs.

    The mask that attention makes is a plain tensor, which DTensor takes only when told to.
    """

    def run() -> object:
        with sdpa_kernel(SDPBackend.MATH), implicit_replication():
            return call()

    return run


def batch(x: torch.Tensor) -> torch.Tensor:
    """The same data as a DTensor."""
    return distribute_tensor(x, alone(), [Replicate()])
