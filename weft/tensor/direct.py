"""Repeated calls in one memory: what an op gives, found by one look-up, where its arguments already lie right."""

from __future__ import annotations

import torch

from ..runtime.machine import forget_with_residences
from ..sharding.layout import Layout
from .tensor import Tensor, wrap_whole

__all__ = ["NOT_REPEATED", "Signature", "remember_call", "repeated", "signature_of"]

Signature = tuple[object, ...]

_results: dict[Signature, Layout | tuple[Layout, ...]] = {}
"""Calls that only read or give views, with the layouts of what they give."""
_writes: set[Signature] = set()
"""Calls that write to their first argument."""
_MOST = 1 << 16
NOT_REPEATED = object()
"""What `repeated` gives for a call that was not made before."""


def _forget() -> None:
    _results.clear()
    _writes.clear()


forget_with_residences(_forget)


def signature_of(func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> Signature | None:
    """All that the layouts of the results depend on, or None for calls with lists of tensors or plain tensors."""
    signature: list[object] = [func]
    for x in args:
        kind = type(x)
        if kind is Tensor:
            signature += (x._layout, x.shape)  # type: ignore[attr-defined]
        elif kind is float:
            signature.append(float)
        elif kind is list:
            if x and type(x[0]) is not int:  # type: ignore[index]
                return None
            signature.append(tuple(x))  # type: ignore[arg-type]
        elif kind is torch.Tensor:
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
    layout = _results.get(signature)  # type: ignore[arg-type]
    if layout is None:
        if signature not in _writes:
            return NOT_REPEATED
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
