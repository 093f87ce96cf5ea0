"""Determinants: kernels factor a matrix or its transpose, whichever lies row by row, and the way back asks the whole which."""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..rules.call import BoundCall

aten = torch.ops.aten


@handler(aten._linalg_det.default, aten._linalg_slogdet.default)
def _determinant(call: BoundCall) -> object:
    x = call.tensor("A")
    if not x.is_contiguous():
        # What is brought elsewhere has no gaps any more, and must not lie row by row for that.
        columns = aten.clone.default(x.mT, memory_format=torch.contiguous_format)
        call = call.replaced(A=columns.mT)
    return run_by_rule(call)
