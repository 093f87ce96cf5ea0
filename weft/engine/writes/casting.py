"""`out=` of another dtype: some kernels cast what they write there, others refuse; which, torch says only when tried."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils._pytree import tree_map_only

from ...caches import BoundedCache
from ...rules.call import REFUSALS, BoundCall, Op, text_of
from ..op_kind import kind_of

__all__ = ["check_cast"]

Refusal = tuple[type[Exception], str]

_refusals = BoundedCache[tuple[object, ...], Refusal | None](4096)
_MOST_TRIED = 1 << 20
"""Elements: of more it is tried with short dims, because with theirs it takes as long as the op itself."""
_SHORT = 8
"""The size of such dims."""


def check_cast(call: BoundCall, functional: Op) -> None:
    """Raises what torch raises for `out=` tensors of these dtypes, where it refuses them."""
    tensors = call.tensors
    rest = call.with_tensors([None] * len(tensors))
    try:
        key = (call.func, tuple((tuple(x.shape), x.dtype) for x in tensors), text_of((rest.args, rest.kwargs)))
        if key not in _refusals:
            _refusals[key] = _refusal(call, functional)
        refusal = _refusals[key]
    except TypeError:  # sizes that a compiler has not settled have no hash
        refusal = _refusal(call, functional)
    if refusal is not None:
        kind, text = refusal
        raise kind(text)


def _refusal(call: BoundCall, functional: Op) -> Refusal | None:
    """What the op says when it is tried on other values: not its `out=`, if it says so without one too."""
    kwargs, outs = call.kwargs, kind_of(call.func).outs
    stand_in = _stand_in if sum(x.numel() for x in call.tensors) <= _MOST_TRIED else _short_stand_in
    here = tree_map_only(torch.Tensor, stand_in, call.args)
    given = {name: value for name, value in kwargs.items() if name not in outs}
    given = tree_map_only(torch.Tensor, stand_in, given)
    into = {name: tree_map_only(torch.Tensor, _empty, kwargs[name]) for name in outs}
    with torch.random.fork_rng([]):
        if _said(lambda: functional(*here, **given)) is not None:
            return None
        return _said(lambda: call.func(*here, **given, **into))


def _said(action: Callable[[], object]) -> Refusal | None:
    try:
        action()
    except REFUSALS as error:
        return type(error), str(error)
    return None


def _stand_in(x: torch.Tensor, most: int | None = None) -> torch.Tensor:
    """A value of the same shape and dtype: zeros where it may be an index, else ones, which more ops take.

    Each element has memory of its own: some kernels, as those of medians, read by the shape what has no strides.
    """
    shape = [size if most is None else min(size, most) for size in x.shape]
    return torch.full(shape, int(x.is_floating_point() or x.is_complex()), dtype=x.dtype)


def _short_stand_in(x: torch.Tensor) -> torch.Tensor:
    return _stand_in(x, _SHORT)


def _empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=x.dtype)
