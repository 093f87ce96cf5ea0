"""Where torch and Python keep lists of classes that they know, `Tensor` and the words of layouts are put on them."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch.optim import optimizer
from torch.utils import _foreach_utils

from ..devices import CPU, Accelerator
from ..engine.dispatch import torch_dispatch
from ..engine.handlers import handlers
from ..handlers.attention.flexible import flexible_attention, flexible_attention_backward
from ..handlers.lists.stepping import give_pieces, take_back
from ..rules.registry import rules
from ..sharding.layout import Layout
from ..sharding.mapping import NamedMapping, PlacementMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import DimSpec, P
from ..sharding.placements import Partial, ReduceOp, Replicated, Sharded
from .pickling import rebuilt, sent
from .tensor import Tensor

__all__: list[str] = []

ForkingPickler.register(Tensor, sent)

# What `torch.load` takes of files with its default, `weights_only=True`: words, which cannot act, and the function that puts
# a tensor together of plain ones.
torch.serialization.add_safe_globals(
    [
        Accelerator,
        CPU,
        DeviceMesh,
        DimSpec,
        Layout,
        NamedMapping,
        P,
        Partial,
        PlacementMapping,
        ReduceOp,
        Replicated,
        Sharded,
        rebuilt,
    ]
)

# `clip_grad_norm_` and optimizers give lists only of types that are known to have ops on lists; others one by one.
_foreach_utils._foreach_supported_types.append(Tensor)
optimizer._foreach_supported_types.append(Tensor)
optimizer.register_optimizer_step_pre_hook(give_pieces)
optimizer.register_optimizer_step_post_hook(take_back)

flex_attention.py_impl(Tensor)(flexible_attention)
flex_attention_backward.py_impl(Tensor)(flexible_attention_backward)

# Before torch calls `__torch_dispatch__` of any class, it asks whether that is DTensor, and loads DTensor and sympy to know.
# What is registered for an op and a class it calls at once: programs that do not use DTensor begin half a second earlier.
_aten = torch.library.Library("aten", "FRAGMENT")
for _op in {*rules, *handlers, torch.ops.aten._local_scalar_dense.default}:
    if _op.namespace == "aten":
        torch.library.register_torch_dispatch(_op, Tensor, torch_dispatch, lib=_aten)
