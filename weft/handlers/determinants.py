"""Determinants: kernels factor a matrix or its transpose, whichever lies row by row, and the way back asks the whole which."""

from __future__ import annotations

from typing import cast

import torch

from ..engine.dispatch import run_by_rule
from ..engine.handlers import handler

aten = torch.ops.aten


@handler(aten._linalg_det.default, aten._linalg_slogdet.default)
def _determinant(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    x = cast(torch.Tensor, args[0])
    if not x.is_contiguous():
        # What is brought elsewhere has no gaps any more, and must not lie row by row for that.
        columns = aten.clone.default(x.mT, memory_format=torch.contiguous_format)
        args = (columns.mT, *args[1:])
    return run_by_rule(func, args, kwargs)
