"""Calls for which torch reads memory itself, asking nobody: done on the whole value, or refused.

A sharded tensor has pieces and no memory of its own; where torch looks for one, it finds an address that is nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch

from ..engine.dispatch_keys import let_in
from ..engine.moves.movement import move
from ..engine.sharded import ShardedTensor
from .text import text

__all__ = ["Number", "as_number", "of_plain", "read", "refuse_sharing", "written"]

Number = bool | int | float | complex
T = TypeVar("T")
Element = TypeVar("Element", bool, int, float, complex)

_PYTHON, _SNAPSHOT = torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot


def as_number(read_it: Callable[[], Element]) -> Element:
    """A tensor of one element as a number, read by torch's own method of it, also where torch has shut subclasses out.

    `torch.tensor([loss, accuracy])` reads each element by `float(x)`, `int(x)` and so on after it has done so.
    """
    if not torch._C._dispatch_tls_is_dispatch_key_excluded(_PYTHON):
        return read_it()
    with let_in(_PYTHON, _SNAPSHOT):
        return read_it()


def refuse_sharing(x: ShardedTensor) -> NoReturn:
    """Raises what `share_memory_` says."""
    raise RuntimeError(
        f"share_memory_ cannot share {text(x).splitlines()[0]}, which lies in pieces: start the processes with torchrun, each of "
        "which then holds its own pieces, or share the whole, x.full_tensor().share_memory_()"
    )


def written(x: ShardedTensor, name: str, change: Callable[..., object], *others: torch.Tensor) -> None:
    """Changes the whole value, beside those of other tensors, and writes it back."""
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name} cannot be differentiated: call x.detach().{name}, or do it under torch.no_grad()")
    whole = _whole(x).clone()
    change(whole, *map(_whole, others))
    with torch.no_grad():
        x.copy_(whole)


def read(value: T) -> T | torch.Tensor:
    """An argument that torch reads from memory: plain, the whole of it."""
    return _whole(value) if isinstance(value, ShardedTensor) else value


def of_plain(name: str) -> Callable[..., torch.Tensor]:
    """A method that makes plain tensors, where torch reads the device off the dispatch keys: that of a plain tensor."""

    def method(x: ShardedTensor, *args: object, **kwargs: object) -> torch.Tensor:
        made: torch.Tensor = getattr(torch.empty(0, dtype=x.dtype, device=x.device), name)(*args, **kwargs)
        return made

    method.__doc__ = f"As in torch: `{name}` makes a plain tensor."
    return method


def _whole(x: torch.Tensor) -> torch.Tensor:
    return move(x.detach(), None) if isinstance(x, ShardedTensor) else x.detach()
