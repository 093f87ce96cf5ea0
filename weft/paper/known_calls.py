"""Calls that are known: the same op on tensors of the same shapes gives such tensors again, without asking torch for them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..rules.call import Args, Kwargs, Op
from .work import OpWork, is_view, tensors_in

__all__ = ["KnownOp", "call_key", "known_call"]

_META = torch.device("meta")


class Shaped(NamedTuple):
    """What tells one result from another."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype


class KnownOp(NamedTuple):
    """What a call gives, and what it takes: results to be made anew, or else the op's own arguments by position."""

    results: tuple[Shaped, ...]
    form: type | None
    """The kind of list that the results are in; None: it is one."""
    written: int | None
    """The argument that the op writes to and gives."""
    runs: bool
    """Whether torch is asked all the same: for views."""
    work: OpWork | None

    def again(self, func: Op, args: Args, kwargs: Kwargs) -> object:
        """The result of such a call."""
        if self.runs:
            return func(*args, **kwargs)
        if self.written is not None:
            return args[self.written]
        made = [torch.empty_strided(size, steps, dtype=dtype, device=_META) for size, steps, dtype in self.results]
        return made[0] if self.form is None else self.form(made)


def known_call(func: Op, args: Args, kwargs: Kwargs, result: object, work: OpWork | None) -> KnownOp | None:
    """What is to be known of a call; None where it has to be looked at every time."""
    if func._schema.is_mutable:
        written = [at for at, x in enumerate(args) if x is result]
        return KnownOp((), None, written[0], False, work) if written and kwargs.get("out") is None else None
    if is_view(func) or func is torch.ops.aten._lazy_clone.default:
        return KnownOp((), None, None, True, work)
    if torch.Tag.inplace_view in func.tags:
        return None
    if isinstance(result, torch.Tensor):
        return KnownOp((_shaped(result),), None, None, False, work)
    if not isinstance(result, (list, tuple)) or not all(isinstance(x, torch.Tensor) for x in result):
        return None
    given = {x.untyped_storage()._cdata for x in tensors_in(args, kwargs)}
    if any(x.untyped_storage()._cdata in given for x in result):
        return None
    return KnownOp(tuple(map(_shaped, result)), type(result), None, False, work)


def _shaped(x: torch.Tensor) -> Shaped:
    return Shaped(x.shape, x.stride(), x.dtype)


def call_key(func: Op, args: Args, kwargs: Kwargs) -> object:
    """What a call's results depend on; None where some tensor has memory, or some argument no hash."""
    key: list[object] = [id(func)]
    if not _add(key, args):
        return None
    for name, value in kwargs.items():
        key.append(name)
        if not _add(key, (value,)):
            return None
    return tuple(key)


def _add(key: list[object], values: list[object] | tuple[object, ...]) -> bool:
    for x in values:
        kind = type(x)
        if isinstance(x, torch.Tensor) and kind in (torch.Tensor, torch.nn.Parameter):
            if not x.is_meta:
                if x.dim():
                    return False
                key.append(x.dtype)
            key += (x.shape, x.stride(), x.dtype)
        elif isinstance(x, (list, tuple)) and kind in (list, tuple):
            key.append(len(x))
            if not _add(key, x):
                return False
        elif isinstance(x, torch.device):
            if x.type != "meta":
                return False
            key.append(x)
        else:
            key += (kind, x)
    return True
