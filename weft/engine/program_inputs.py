"""How the inputs of a compiled program become the plain tensors that it runs on, with torch before 2.13.

Torch takes each sharded input apart before each run: since 2.13 in code that it writes for the program, before that in loops that
look at every size of every parameter, 4 µs each.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import torch

from .sharded import ShardedTensor

__all__ = ["take_apart_at_once"]

_LOOPS = "runtime_unwrap_tensor_subclasses"
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int})


class Known(Protocol):
    """What torch knows of an input since it was traced."""

    arg_count: int
    """How many inputs of the inner program stand for it: its pieces, and its sizes that are open."""


class TakeApart(Protocol):
    """Torch's function for it."""

    def __call__(
        self, inputs: Sequence[object], *, append_symints: bool, subclass_metas: Sequence[object] | None = None
    ) -> list[object]:
        """What the inputs are made of, one after the other."""


def take_apart_at_once(wrappers: ModuleType) -> None:
    """Lets torch take sharded tensors apart whose sizes are settled without its loops; `wrappers` is where it runs them."""
    loops = getattr(wrappers, _LOOPS, None)
    if loops is not None:
        vars(wrappers)[_LOOPS] = _at_once(loops)


def _at_once(loops: TakeApart) -> TakeApart:
    def apart(
        inputs: Sequence[object], *, append_symints: bool, subclass_metas: Sequence[object] | None = None
    ) -> list[object]:
        found: list[object] = []
        for at, x in enumerate(inputs):
            known = None if subclass_metas is None else subclass_metas[at]
            if type(x) in _PLAIN:
                found.append(x)
            elif isinstance(x, ShardedTensor) and (pieces := _pieces(x, known, append_symints)) is not None:
                found += pieces
            else:
                found += loops([x], append_symints=append_symints, subclass_metas=None if known is None else [known])
        return found

    return apart


def _pieces(x: ShardedTensor, known: object, has_sizes: bool) -> list[torch.Tensor] | None:
    """The pieces of a tensor, if these are plain and all that torch needs of it: it has no open sizes."""
    names = x.__tensor_flatten__()[0]
    if has_sizes and getattr(known, "arg_count", None) != len(names):
        return None
    pieces = [getattr(x, name) for name in names]
    return pieces if all(type(piece) is torch.Tensor for piece in pieces) else None
