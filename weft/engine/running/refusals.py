"""What torch refuses of elements, told also by processes that do not hold them.

A kernel that has no form for a dtype says so when it meets an element. With pieces that are empty here and are not
elsewhere, the other processes would raise and this one would go on, to wait for them at the next exchange. What it says of
the elements themselves, as of an index that is too large, only those know that have them, and the others are told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...errors import WeftError
from ...rules.call import REFUSALS, BoundCall
from ...rules.registry import Rule
from ...runtime.processes.agreement import own_faults
from ...runtime.processes.mesh_processes import leaves_out
from ...sharding.geometry import box_at, box_shape
from ...sharding.layout import Layout
from ..ragged.alone import alone_of
from ..sharded import ShardedTensor

__all__ = ["all_have_some", "refuse_as_others", "refuse_whole", "tell_others"]

_FEW = 1 << 16
"""Elements that whole tensors are made of, once for calls that are alike. Of more, others are heard of when they are waited for."""
_OF_MATRICES: type[Exception] = vars(torch.linalg)["LinAlgError"]  # which torch does not tell type checkers of
_BY_ZERO = "ZeroDivisionError"
"""What torch says of whole numbers that are divided by the number 0."""


def tell_others(error: Exception, tensors: Sequence[torch.Tensor]) -> None:
    """Tells the other processes what torch refuses of tensors of which each has other elements: they raise it, too.

    What is the same in all of them, all refuse by themselves; who raises what another has told has heard of it.
    """
    if isinstance(error, WeftError) or (isinstance(error, NotImplementedError) and all(map(all_have_some, tensors))):
        return
    if any(isinstance(x, ShardedTensor) and _is_other_elsewhere(x) for x in tensors):
        own_faults.tell_others(error)


def _is_other_elsewhere(x: ShardedTensor) -> bool:
    """Whether some process has other elements than this one, or none."""
    layout = x._layout
    return bool(layout.split_axes or layout.pending) or alone_of(x) is not None or leaves_out(layout.mesh)


def all_have_some(x: torch.Tensor) -> bool:
    """Whether every process has elements of a tensor, or nobody has."""
    if not isinstance(x, ShardedTensor) or not x.numel():
        return True
    layout = x._layout
    last = box_at(layout, x.shape, tuple(size - 1 for size in layout.mesh.mesh_shape))  # which none is smaller than
    return not leaves_out(layout.mesh) and 0 not in box_shape(last)


def refuse_as_others(call: BoundCall, inputs: Sequence[Layout], rule: Rule | None) -> None:
    """Raises what other processes raise for want of a kernel, or of a divisor, in one that has no elements."""
    if rule is not None and (rule.local is not None or rule.local_args is not None):
        refuse_whole(call)  # what devices do by a way of their own, or with other numbers
    else:
        _refuse(call, [_largest(layout, tuple(x.shape)) for layout, x in zip(inputs, call.tensors, strict=True)])


def refuse_whole(call: BoundCall) -> None:
    """The same of an op that can be asked of whole tensors alone."""
    shapes = [tuple(x.shape) for x in call.tensors]
    if sum(map(math.prod, shapes)) <= _FEW and torch.Tag.nondeterministic_seeded not in call.func.tags:
        _refuse(call, shapes)


def _refuse(call: BoundCall, shapes: Sequence[tuple[int, ...]]) -> None:
    if any(0 in shape for shape in shapes):
        return
    told: list[Exception] = []
    for element in _ELEMENTS:
        error = _refusal(call, shapes, element)
        if error is None:
            return
        told.append(error)
    # They are not the elements that the others hold: only what no element can mend counts.
    error = next((each for each in told if isinstance(each, NotImplementedError)), told[0])
    if isinstance(error, _OF_MATRICES):  # which is said of matrices, not of dtypes
        return
    by_zero = len(shapes) == 1 and str(error) == _BY_ZERO
    if isinstance(error, NotImplementedError) or by_zero or _is_for_dtype(call, shapes):
        raise error


_ELEMENTS = (None, 1)
"""What is tried: None for ones where numbers may be broken, and else zeros, which are places that every tensor has."""


def _refusal(
    call: BoundCall, shapes: Sequence[tuple[int, ...]], element: int | None, instead: torch.dtype | None = None
) -> Exception | None:
    """What torch says of a call with such elements; `instead`: of this dtype where they are of that of the first."""
    first = call.tensors[0].dtype
    local = [
        _stand_in(shape, instead if instead is not None and x.dtype is first else x.dtype, element).to(x.device)
        for shape, x in zip(shapes, call.tensors, strict=True)
    ]
    try:
        call.on(local)
    except REFUSALS as error:
        return error
    return None


def _is_for_dtype(call: BoundCall, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether torch would take a call, with elements of another dtype."""
    return any(_refusal(call, shapes, element, torch.float32) is None for element in (*_ELEMENTS, 100))


def _stand_in(shape: tuple[int, ...], dtype: torch.dtype, element: int | None) -> torch.Tensor:
    """Elements that a kernel can take: zeros at first where they may be places, which some do not look at before they write there."""
    is_broken = dtype.is_floating_point or dtype.is_complex
    return torch.full(shape, int(is_broken) if element is None else element, dtype=dtype)


def _largest(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the first shard, which none is larger than."""
    return box_shape(box_at(layout, shape, (0,) * len(layout.mesh.mesh_shape)))
