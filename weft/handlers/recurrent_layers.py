"""Recurrent layers of cuDNN, as ops that take weights that lie anywhere, and give gradients as one list instead of tensors and a list."""

from __future__ import annotations

import torch

from ..engine.handlers import handler
from ..rules.call import BoundCall
from ..rules.ops.recurrence.cudnn import GRADIENTS, LAYERS, STATED

aten = torch.ops.aten


@handler(aten._cudnn_rnn.default)
def _of_any_weights(call: BoundCall) -> object:
    return LAYERS(*call.args, **call.kwargs)


@handler(aten._cudnn_rnn_backward.default)
def _in_one_list(call: BoundCall) -> tuple[object, ...]:
    each = iter(GRADIENTS(*call.args, **call.kwargs))
    asked = zip(STATED, call.flags("output_mask"), strict=False)
    first = [next(each) if wanted and call.arg(name) is not None else None for name, wanted in asked]
    return (*first, list(each))
