"""Where torch and Python keep lists of classes that they know, `Tensor` is put on them."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import NoReturn

from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.optim import optimizer
from torch.utils import _foreach_utils

from .pickling import sent
from .tensor import Tensor

__all__: list[str] = []

ForkingPickler.register(Tensor, sent)

# `clip_grad_norm_` and optimizers give lists only of types that are known to have ops on lists; others one by one.
_foreach_utils._foreach_supported_types.append(Tensor)
optimizer._foreach_supported_types.append(Tensor)


def _flex(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError(
        "flex_attention does not take sharded tensors: use torch.nn.functional.scaled_dot_product_attention with a mask, or "
        "weft.local_map(flex_attention, ...), which runs it on the batches and heads of each device"
    )


flex_attention.py_impl(Tensor)(_flex)
flex_attention_backward.py_impl(Tensor)(_flex)
