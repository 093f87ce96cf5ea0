"""Models that turn to float32 for a part of their work (norms, losses) do that part in float64 too.

Otherwise a difference of 1e-16 before such a turn may be one of 1e-7 after it, and a wrong value could hide behind it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

import torch


class _Doubled(ModuleType):
    """torch, where float32 is called float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Lets the modules of `transformers` that are loaded find float64 where they ask for float32."""
    doubled, single = _Doubled("torch"), torch.Tensor.float
    asking = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.") and vars(module).get("torch") is torch
    ]
    for module in asking:
        vars(module)["torch"] = doubled
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = single  # type: ignore[method-assign]
        for module in asking:
            vars(module)["torch"] = torch
