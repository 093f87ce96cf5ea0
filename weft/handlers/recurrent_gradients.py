"""The gradients of cuDNN's recurrent layers, which come as tensors and a list of tensors: for the engine they are one list."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..rules.call import BoundCall
from ..rules.ops.recurrence.cudnn import GRADIENTS, STATED


@handler(torch.ops.aten._cudnn_rnn_backward.default)
def _in_one_list(call: BoundCall) -> tuple[object, ...]:
    each = iter(GRADIENTS(*call.args, **call.kwargs))
    asked = zip(STATED, call.flags("output_mask"), strict=False)
    first = [next(each) if wanted and call.arg(name) is not None else None for name, wanted in asked]
    return (*first, list(each))
