"""Distances between rows: of no rows, torch's kernel for their gradient divides by zero, which ends the interpreter."""

from __future__ import annotations

import torch

from ..engine.execute import run_by_rule
from ..engine.handlers import handler
from ..rules.call import BoundCall

aten = torch.ops.aten


@handler(aten._pdist_backward.default)
def _between_rows(call: BoundCall) -> object:
    x = call.tensor("self")
    return run_by_rule(call) if x.shape[0] else aten.zeros_like.default(x)
