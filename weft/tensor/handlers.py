"""The ops that need more than a rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch

from .dispatch import handler
from .tensor import Tensor

aten = torch.ops.aten


@handler(aten.mean.default, aten.mean.dim)
def _mean(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A mean over shards of different sizes is the sum divided by the count, not the mean of means."""
    x = cast(Tensor, args[0])
    named = args[1] if len(args) > 1 else None
    dims = (
        list(cast("Sequence[int]", named))
        if isinstance(named, (list, tuple))
        else ([] if named is None else [cast(int, named)])
    )
    keepdim = bool(args[2]) if len(args) > 2 else bool(kwargs.get("keepdim", False))
    count = math.prod(x.shape[d] for d in dims) if dims else x.numel()
    dtype = cast("torch.dtype | None", kwargs.get("dtype"))
    if not (dtype or x.dtype).is_floating_point and not (dtype or x.dtype).is_complex:
        raise RuntimeError(
            f"mean(): could not infer output dtype. Input dtype must be either a floating point or complex dtype. Got: {x.dtype}"
        )
    total = aten.sum.dim_IntList(x, dims or None, keepdim, dtype=dtype)
    return total / count if count else total / 0
