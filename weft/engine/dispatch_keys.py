"""The dispatch key that sharded tensors have beside those of their device: at it, calls that torch takes apart stay whole.

Torch says some ops by others before autograd sees them. Autograd has formulas for a few of these as they are, which torch takes
for nested tensors only. So sharded tensors have a key that comes before autograd and that all other ops pass by; calls of
these few stop there, and are handed to these formulas, or are given other arguments first. Decision 44 says more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..caches import cached
from ..rules.call import Op

__all__ = ["give_first", "keys_of", "let_in", "look_first", "stay_whole"]

Keys = torch._C.DispatchKeySet

_NAME = "DeferredInit"
"""A key that torch leaves to libraries outside it, and that none in use takes. Without it, all calls come in parts."""
_KEY = torch._C._parse_dispatch_key(_NAME)
_WHOLE = Keys(torch._C.DispatchKey.AutogradNestedTensor)

_all_ops, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
if _KEY is not None:
    _all_ops.fallback(torch.library.fallthrough_kernel, _NAME)
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
    for _op in torch._ops._higher_order_ops.values():  # those that take functions are dispatched by torch's Python
        _op.fallthrough(_KEY)


def keys_of(dtype: torch.dtype, rank: int) -> Keys | None:
    """What tensors have beside the keys that torch gives them; None: nothing.

    Only real numbers have more: for complex ones torch 2.11 has no such formulas. Of tensors without dims no such call is made.

    >>> keys_of(torch.float32, 2) is None, keys_of(torch.float32, 0) is None, keys_of(torch.complex64, 2) is None
    (False, True, True)
    """
    return Keys(_KEY) if _KEY is not None and rank and dtype.is_floating_point else None


def stay_whole(op: Op, which: Callable[..., bool]) -> None:
    """Lets calls of an op stay whole, if they are such."""
    if _KEY is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(_KEY)

    def kernel(keys: Keys, *args: object) -> object:
        in_parts, whole = _next_keys((keys & below).raw_repr())
        return redispatch(in_parts if whole is None or not which(*args) else whole, *args)

    _aten.impl(op, kernel, _NAME, with_keyset=True)


def give_first(op: Op, change: Callable[..., tuple[object, ...]]) -> None:
    """Lets calls of an op be given other arguments, before torch takes them apart."""
    if _KEY is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(_KEY)

    def kernel(keys: Keys, *args: object) -> object:
        return redispatch(keys & below, *change(*args))

    _aten.impl(op, kernel, _NAME, with_keyset=True)


def look_first(op: Op, look: Callable[..., None]) -> None:
    """Lets calls of an op be looked at, and refused, before torch takes them apart."""
    if _KEY is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(_KEY)

    def kernel(keys: Keys, *args: object, **kwargs: object) -> object:
        look(*args, **kwargs)
        return redispatch(keys & below, *args, **kwargs)

    _aten.impl(op, kernel, _NAME, with_keyset=True)


@contextmanager
def let_in(*keys: torch._C.DispatchKey) -> Iterator[None]:
    """Within it, calls stop at these keys again, though torch has shut them out."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in keys:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


@cached(256)
def _next_keys(raw: int) -> tuple[Keys, Keys | None]:
    """Where a call goes on in parts, and where autograd is next, to the formula for one that stays whole."""
    keys = Keys.from_raw_repr(raw)
    below = keys.remove(torch._C.DispatchKey.PythonDispatcher)  # a compiler's, which knows decompositions
    is_recorded = torch._C._dispatch_key_name(below.highestPriorityTypeId()).startswith("Autograd")
    return keys, below | _WHOLE if is_recorded else None
