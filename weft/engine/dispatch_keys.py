"""The dispatch keys that sharded tensors have beside those of their device: at them, calls that torch takes apart stay whole.

Torch says some ops by others before autograd sees them. Autograd has formulas for a few of these as they are, which torch takes
for nested tensors only. So sharded tensors have a key that comes before autograd and that all other ops pass by; calls of
these few stop there, and are handed to these formulas, or are given other arguments first. Tensors of three dims and more have
another, too, for what is worth it for these only. Decision 44 says more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..caches import cached
from ..rules.call import Op

__all__ = ["give_first", "keys_of", "let_in", "look_first", "say_first", "stay_whole"]

Keys = torch._C.DispatchKeySet

_NAME, _OF_MANY_DIMS = "DeferredInit", "TESTING_ONLY_GenericWrapper"
"""Keys that torch leaves to others, and that no library in use takes. Without them, all calls come in parts."""
_KEY, _MANY = torch._C._parse_dispatch_key(_NAME), torch._C._parse_dispatch_key(_OF_MANY_DIMS)
_NOTED = torch._C._parse_dispatch_key("PythonTLSSnapshot")
"""Where torch notes what its Python has to find again; calls go on from there as they came."""
_WHOLE = Keys(torch._C.DispatchKey.AutogradNestedTensor)

_all_ops, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
for _name, _key in ((_NAME, _KEY), (_OF_MANY_DIMS, _MANY)):
    if _key is not None:
        _all_ops.fallback(torch.library.fallthrough_kernel, _name)
        torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_key)
        for _op in torch._ops._higher_order_ops.values():  # those that take functions are dispatched by torch's Python
            _op.fallthrough(_key)


def keys_of(dtype: torch.dtype, rank: int) -> Keys | None:
    """What tensors have beside the keys that torch gives them; None: nothing.

    Only real numbers have more: for complex ones torch 2.11 has no such formulas. Of tensors without dims no such call is made.

    >>> keys_of(torch.float32, 2) is None, keys_of(torch.float32, 0) is None, keys_of(torch.complex64, 2) is None
    (False, True, True)
    """
    if _KEY is None or not rank or not dtype.is_floating_point:
        return None
    return Keys(_KEY) if rank < 3 or _MANY is None else Keys(_KEY).add(_MANY)


def stay_whole(op: Op, which: Callable[..., bool], *, of_many_dims: bool = False) -> None:
    """Lets calls of an op stay whole, if they are such; `of_many_dims`: only where a tensor has three dims or more."""
    name, key = (_OF_MANY_DIMS, _MANY) if of_many_dims else (_NAME, _KEY)
    if _KEY is None or key is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(key)

    def kernel(keys: Keys, *args: object) -> object:
        in_parts, whole = _next_keys((keys & below).raw_repr())
        return redispatch(in_parts if whole is None or not which(*args) else whole, *args)

    _aten.impl(op, kernel, name, with_keyset=True)


def give_first(op: Op, change: Callable[..., tuple[object, ...]]) -> None:
    """Lets calls of an op be given other arguments, before torch takes them apart."""
    if _KEY is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(_KEY)

    def kernel(keys: Keys, *args: object) -> object:
        return redispatch(keys & below, *change(*args))

    _aten.impl(op, kernel, _NAME, with_keyset=True)


def say_first(op: Op, by: Callable[..., object]) -> None:
    """Lets calls of an op on tensors of many dims be said by others, before torch takes them apart; `NotImplemented`: as torch does."""
    if _KEY is None or _MANY is None:
        return
    redispatch, below = op._handle.redispatch_boxed, torch._C._dispatch_keyset_full_after(_MANY)

    def kernel(keys: Keys, *args: object) -> object:
        result = by(*args)
        return redispatch(keys & below, *args) if result is NotImplemented else result

    _aten.impl(op, kernel, _OF_MANY_DIMS, with_keyset=True)


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
    whole = keys.remove(torch._C.DispatchKey.PythonDispatcher)  # a compiler's, which knows decompositions
    rest = whole
    for passed in (_KEY, _NOTED):
        rest = rest if passed is None else rest.remove(passed)
    is_recorded = torch._C._dispatch_key_name(rest.highestPriorityTypeId()).startswith("Autograd")
    return keys, whole | _WHOLE if is_recorded else None
