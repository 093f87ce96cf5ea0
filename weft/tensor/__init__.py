"""What users hold: `Tensor`, creation, communication, transfer, dispatch.

The package itself can be called: `weft.tensor(data, mapping=...)` makes a tensor, as `torch.tensor` does.
"""

import sys
from types import ModuleType

from ..rules import table  # noqa: F401 - fills the table of rules
from ..runtime.host_memory import keep_freed_memory
from . import (  # noqa: F401 - Tensor's ops and its print
    aside,
    attention,
    batch_norm,
    becoming,
    classes,
    conjugation,
    convolution,
    creation_like,
    determinants,
    dispatch,
    embedding,
    folding,
    foreach,
    foreach_norm,
    gating,
    indexing,
    joining,
    layer_norm,
    loss_scaling,
    losses,
    mirroring,
    one_hot,
    overwriting,
    packing,
    padding,
    pickling,
    pointing,
    pooling,
    random_numbers,
    raw_memory,
    reductions,
    refusing,
    reshaping,
    safe_loading,
    scanning,
    shifting,
    slicing,
    sorting,
    striding,
    text,
    unfolding,
)
from .creation import tensor as _make
from .tensor import Tensor

__all__ = ["Tensor"]

keep_freed_memory()


class _CallablePackage(ModuleType):
    __call__ = staticmethod(_make)


sys.modules[__name__].__class__ = _CallablePackage
