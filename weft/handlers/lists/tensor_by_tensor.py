"""Ops on lists that are computed tensor by tensor, each as the op of one tensor is; and fused steps that give new tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from ...engine.handlers import handler
from ...engine.op_kind import kind_of
from ...rules.call import BoundCall, Op
from .overloads import FUSED, overloads

aten = torch.ops.aten


def _powsum(x: torch.Tensor, order: float = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    powers = aten.pow.Tensor_Scalar(aten.abs.default(x), order)
    return cast(torch.Tensor, aten.sum.default(powers, dtype=dtype))


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "_foreach_powsum": _powsum,
    "_foreach_max": aten.max.default,
}


@handler(*overloads(_REDUCTIONS))
def _reduced(call: BoundCall) -> object:
    each = _REDUCTIONS[call.name]
    return [each(x, *call.args[1:], **call.kwargs) for x in call.tensor_list("self")]


@handler(*overloads(["_foreach_mm"]))
def _products(call: BoundCall) -> object:
    left, right = call.tensor_list("self"), call.tensor_list("mat2")
    return [aten.mm.default(a, b) for a, b in zip(left, right, strict=True)]


@handler(aten._foreach_pow.ScalarAndTensor)
def _power(call: BoundCall) -> object:
    """One number to the power of each tensor: the tensors stand second."""
    return [aten.pow.Scalar(call.args[0], x) for x in call.tensor_list("exponent")]


@handler(*(op for op in overloads(FUSED) if not kind_of(op).written))
def _fused_copy(call: BoundCall) -> object:
    """A fused step that gives new tensors: the step in place, of copies of what it writes to."""
    step = cast(Op, getattr(getattr(aten, f"{call.name}_"), call.func._overloadname))
    written = kind_of(step).written
    args = [
        [x.clone() for x in cast("Sequence[torch.Tensor]", value)] if i in written else value
        for i, value in enumerate(call.args)
    ]
    step(*args, **call.kwargs)
    return tuple(args[i] for i in written)
