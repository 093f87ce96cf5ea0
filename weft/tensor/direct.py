"""Repeated calls in one memory: what an op gives, found by one look-up, where its arguments already lie right."""

from __future__ import annotations

import torch

from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from .folded import Folded
from .op_kind import OpKind
from .recipe import Recipe
from .tensor import Tensor, wrap_whole

__all__ = [
    "NOT_REPEATED",
    "Signature",
    "is_known",
    "remember_call",
    "remember_other",
    "remember_recipe",
    "remember_shard_call",
    "repeated",
    "signature_of",
]

Signature = tuple[object, ...]
Given = tuple[Layout, tuple[int, ...], tuple[int, ...], int]
"""The layout, shape, strides and offset of a whole result."""

_results: dict[Signature, Layout | tuple[Layout, ...]] = {}
"""Calls that only read or give views, with the layouts of what they give."""
_writes: set[Signature] = set()
"""Calls that write to their first argument."""
_on_shards: dict[Signature, tuple[Given, ...]] = {}
"""Calls that only read, on tensors of which this process stores one shard each, with what they give."""
_views_of_shards: dict[tuple[Signature, tuple[int, ...], int], tuple[Given, ...]] = {}
"""The same for views, which also depend on the strides and the offset of what they are views of."""
_recipes: dict[Signature, Recipe] = {}
"""Calls that only read, and run at several places."""
_others: set[Signature] = set()
"""Calls that have to be looked at every time."""
_MOST = 1 << 16
NOT_REPEATED = object()
"""What `repeated` gives for a call that was not made before."""


def _forget() -> None:
    _results.clear()
    _writes.clear()
    _on_shards.clear()
    _views_of_shards.clear()
    _recipes.clear()
    _others.clear()


forget_with_residences(_forget)


def signature_of(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> Signature | None:
    """All that the layouts of the results depend on, or None for calls with lists of tensors or plain tensors."""
    signature: list[object] = [func]
    for x in args:
        kind = type(x)
        if kind is Tensor:
            signature += (x._layout, x.shape, x.dtype)  # type: ignore[attr-defined]
        elif kind is float:
            signature.append(float)
        elif kind is list:
            if x and type(x[0]) is not int:  # type: ignore[index]
                return None
            signature.append(tuple(x))  # type: ignore[arg-type]
        elif kind is torch.Tensor or kind is Folded:
            return None
        else:
            signature += (kind, x)
    for name, x in kwargs.items():
        kind = type(x)
        if kind is list or kind is tuple or isinstance(x, torch.Tensor):
            return None
        signature += (name, kind, None if kind is float else x)
    return tuple(signature)


def repeated(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], signature: Signature | None
) -> object:
    """What a call gives that was made before with such arguments, or `NOT_REPEATED`."""
    try:
        return _repeated(func, args, kwargs, signature)
    except RuntimeError as error:
        # Some kernels cannot take lazy copies, which the long way knows to copy for them.
        if "COW.cpp" not in str(error) or func._schema.is_mutable:
            raise
    return NOT_REPEATED


def _repeated(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], signature: Signature | None
) -> object:
    layout = _results.get(signature)  # type: ignore[arg-type]
    if layout is None:
        given = _on_shards.get(signature)  # type: ignore[arg-type]
        if given is not None:
            return _of_shards(func(*[x._pieces[0] if type(x) is Tensor else x for x in args], **kwargs), given)
        recipe = _recipes.get(signature)  # type: ignore[arg-type]
        if recipe is not None:
            return recipe(args, kwargs) if recipe.takes(args) else NOT_REPEATED
        if signature not in _writes:
            return _viewed(func, args, kwargs, signature) if _views_of_shards else NOT_REPEATED
        func(*[x._pieces[0] if type(x) is Tensor else x for x in args], **kwargs)
        return args[0]
    result = func(*[x._pieces[0] if type(x) is Tensor else x for x in args], **kwargs)
    if type(layout) is Layout:
        return wrap_whole(result, layout)
    return type(result)([wrap_whole(value, each) for value, each in zip(result, layout, strict=True)])


def remember_call(signature: Signature, result: object, *, writes: bool) -> None:
    """Notes a call that took its arguments as they lie, in one memory."""
    if len(_results) + len(_writes) >= _MOST:
        _forget()
    if writes:
        _writes.add(signature)
    elif type(result) is Tensor:
        _results[signature] = result._layout
    elif isinstance(result, (list, tuple)) and all(type(value) is Tensor for value in result):
        _results[signature] = tuple(value._layout for value in result)


def remember_shard_call(signature: Signature, result: object, kind: OpKind, args: tuple[object, ...]) -> None:
    """Notes a call that took its arguments as they lie and ran once, on the one shard of each that is stored here."""
    values = result if isinstance(result, (list, tuple)) else (result,)
    if not all(type(value) is Tensor for value in values):
        return
    if kind.written:
        _writes.add(signature)
        return
    given = tuple((x._layout, tuple(x.shape), x.stride(), int(x.storage_offset())) for x in values)
    if kind.is_pure:
        _on_shards[signature] = given
    else:
        x = args[0]
        assert isinstance(x, Tensor)
        _views_of_shards[signature, x.stride(), int(x.storage_offset())] = given


def remember_recipe(signature: Signature, recipe: Recipe) -> None:
    """Notes a call that took its arguments as they lie and ran at several places."""
    if len(_recipes) >= _MOST:
        _recipes.clear()
    _recipes[signature] = recipe


def _viewed(
    func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object], signature: object
) -> object:
    x = args[0] if args else None
    if type(x) is not Tensor or x._shown is not None or x._resolved is not None:
        return NOT_REPEATED
    given = _views_of_shards.get((signature, x.stride(), x.storage_offset()))  # type: ignore[arg-type]
    return NOT_REPEATED if given is None else _of_shards(func(x._pieces[0], *args[1:], **kwargs), given)


def is_known(signature: Signature) -> bool:
    """Whether a call has been looked at, and has to be every time."""
    return signature in _others


def remember_other(signature: Signature) -> None:
    """Notes a call that has to be looked at every time."""
    if len(_others) >= _MOST:
        _others.clear()
    _others.add(signature)


def _of_shards(result: object, given: tuple[Given, ...]) -> object:
    if isinstance(result, torch.Tensor):
        return _of_shard(result, given[0])
    assert isinstance(result, (list, tuple))
    return type(result)([_of_shard(value, each) for value, each in zip(result, given, strict=True)])


def _of_shard(shard: torch.Tensor, given: Given) -> Tensor:
    layout, shape, strides, offset = given
    tensor = torch.Tensor._make_wrapper_subclass(
        Tensor, shape, strides=strides, storage_offset=offset, dtype=shard.dtype, device=shard.device
    )
    tensor._layout = layout
    tensor._pieces = (shard,)
    return tensor
