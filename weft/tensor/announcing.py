"""Where torch and Python keep lists of classes that they know, `Tensor` is put on them."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.optim import optimizer
from torch.utils import _foreach_utils

from ..handlers.attention.flexible import flexible_attention, flexible_attention_backward
from .pickling import sent
from .tensor import Tensor

__all__: list[str] = []

ForkingPickler.register(Tensor, sent)

# `clip_grad_norm_` and optimizers give lists only of types that are known to have ops on lists; others one by one.
_foreach_utils._foreach_supported_types.append(Tensor)
optimizer._foreach_supported_types.append(Tensor)


flex_attention.py_impl(Tensor)(flexible_attention)
flex_attention_backward.py_impl(Tensor)(flexible_attention_backward)
