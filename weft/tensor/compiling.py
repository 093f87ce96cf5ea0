"""What `torch.compile` has to know: Weft's own functions are called, not traced into."""

from __future__ import annotations

import sys

__all__ = ["announce"]

_announced = False
_CALLED = ("weft.sharding", "weft.planning", "weft.rules", "weft.runtime", "weft.tensor")
"""Not `weft.graph`: what it generates is made to be compiled."""


def announce() -> None:
    """Tells dynamo, once it is there, to break its graph at Weft's functions; importing it only for that takes seconds."""
    global _announced  # noqa: PLW0603 - said once per process
    dynamo = sys.modules.get("torch._dynamo")
    if not _announced and dynamo is not None and hasattr(dynamo, "trace_rules"):
        _announced = True
        for package in _CALLED:
            dynamo.trace_rules.add(package)
