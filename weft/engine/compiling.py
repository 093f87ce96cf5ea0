"""What `torch.compile` and Weft have to know of each other: Weft's own functions are called, not traced into."""

from __future__ import annotations

import sys

import torch

from ..runtime.processes.mesh_processes import spans
from ..sharding.mesh import DeviceMesh

__all__ = ["announce", "check_compilable", "is_traced"]

_announced = False
_CALLED = (
    "weft.sharding",
    "weft.planning",
    "weft.rules",
    "weft.runtime",
    "weft.watch",
    "weft.engine",
    "weft.handlers",
    "weft.tensor",
    "weft.local",
)
"""Not `weft.graph`: what it generates is made to be compiled."""


_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


def is_traced() -> bool:
    """Whether a compiler looks on, which is to see what each device does; whoever only counts or logs is none."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)


def check_compilable(mesh: DeviceMesh) -> None:
    """Raises where a compiler would have to record communication between processes, which it cannot yet."""
    if spans(mesh):
        raise NotImplementedError(
            f"torch.compile does not compile tensors that lie on several processes, as those on the mesh {mesh} do: call the "
            "model as it is, or compile what weft.local_map runs on the shards of each device"
        )


def announce() -> None:
    """Tells dynamo, once it is there, to break its graph at Weft's functions; importing it only for that takes seconds."""
    global _announced  # noqa: PLW0603 - said once per process
    dynamo = sys.modules.get("torch._dynamo")
    if not _announced and dynamo is not None and hasattr(dynamo, "trace_rules"):
        _announced = True
        for package in _CALLED:
            dynamo.trace_rules.add(package)
