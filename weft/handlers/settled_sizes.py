"""Sizes that torch's own code asks for as numbers, as some formulas of gradients do: where a compiler leaves them open, they are settled."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..engine.sharded import sharded
from ..rules.call import BoundCall
from ..runtime.traced import settled

aten = torch.ops.aten


@handler(aten.size.default)
def _sizes(call: BoundCall) -> object:
    return list(settled(sharded(call, "self").shape))


@handler(aten.stride.default)
def _strides(call: BoundCall) -> object:
    return list(settled(sharded(call, "self").stride()))
