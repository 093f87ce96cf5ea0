"""What `torch.compile` and Weft have to know of each other: Weft's own functions are called, not traced into."""

from __future__ import annotations

import sys

import torch

__all__ = ["announce", "is_traced"]

_announced = False
_CALLED = ("weft.sharding", "weft.planning", "weft.rules", "weft.runtime", "weft.tensor")
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


def announce() -> None:
    """Tells dynamo, once it is there, to break its graph at Weft's functions; importing it only for that takes seconds."""
    global _announced  # noqa: PLW0603 - said once per process
    dynamo = sys.modules.get("torch._dynamo")
    if not _announced and dynamo is not None and hasattr(dynamo, "trace_rules"):
        _announced = True
        for package in _CALLED:
            dynamo.trace_rules.add(package)
