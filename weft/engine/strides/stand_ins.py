"""Calls with elements that stand in for others: what torch's kernels say of them, where its accounts without memory refuse."""

from __future__ import annotations

from typing import final

import torch

from ...rules.call import REFUSALS, BoundCall
from ..op_kind import kind_of

__all__ = ["FEW", "OF_DTYPE", "UntoldError", "given_by_kernels"]


@final
class UntoldError(NotImplementedError):
    """Raised where torch cannot say without elements what a call gives."""


OF_DTYPE = " not implemented for '"
"""What torch says of dtypes for which an op has no kernel."""

FEW = 1 << 16
"""Elements that stand in for those of a call, lying as they do; for more, one stands in for all."""


def given_by_kernels(call: BoundCall) -> object:
    """What kernels give, or the error that they raise whatever the elements are; NotImplemented where they cannot be asked.

    Torch's accounts of some ops refuse what kernels take, and refuse in other words, by other kinds of errors.
    """
    is_few = sum(x.numel() for x in call.tensors) <= FEW
    if call.func.namespace not in _ON_HOST or (not is_few and not kind_of(call.func).is_pure):
        return NotImplemented
    if any(x.device.type not in _ON_HOST[call.func.namespace] for x in call.tensors):
        return NotImplemented
    if torch.Tag.nondeterministic_seeded in call.func.tags:
        if not call.has("generator"):
            return NotImplemented
        call = call.replaced(generator=torch.Generator())  # so that nobody's numbers are others afterwards
    told = _given(call, 0, is_few)
    return _given(call, 1, is_few) if isinstance(told, Exception) else told


_ON_HOST = {"aten": ("cpu",), "prims": ("cpu", "meta")}
"""By the library that an op is of, devices for whose tensors those of the host stand in.

Primitives broadcast what their accounts refuse, and torch calls them with tensors without memory as well, for tangents that are zero.
"""


def _given(call: BoundCall, element: int, is_few: bool) -> object:
    """What torch gives or says of a call whose elements are all the same."""
    stand_in = _lying_as if is_few else _all_one
    made = {id(x): stand_in(x, element) for x in call.tensors}  # a tensor that is given twice is one
    try:
        return call.on([made[id(x)] for x in call.tensors])
    except NotImplementedError as told:
        return NotImplemented if str(told).startswith(_NOWHERE) else told
    except REFUSALS as told:
        return told


_NOWHERE = "Could not run '"
"""What torch says of ops that have no kernel for a device at all: those of other devices."""


def _all_one(x: torch.Tensor, element: int) -> torch.Tensor:
    """An element in the shape of a tensor."""
    return torch.full((), element, dtype=x.dtype).expand(x.shape)


def _lying_as(x: torch.Tensor, element: int) -> torch.Tensor:
    """Elements that lie as a tensor does, some of them in one place maybe."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return torch.full((reach + 1,), element, dtype=x.dtype).as_strided(x.shape, x.stride())
