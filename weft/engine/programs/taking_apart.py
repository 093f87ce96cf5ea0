"""How sharded tensors go into compiled programs and come out of them, with torch before 2.13.

Torch takes each sharded input apart before each run: since 2.13 in code that it writes for the program, before that in loops that
look at every size of every parameter, 4 µs each. And what comes out of a program with open sizes had sizes in the place of its strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Protocol

import torch

from ..sharded import ShardedTensor
from ..value import Value

__all__ = ["read_strides_behind_sizes", "take_apart_at_once"]

_LOOPS = "runtime_unwrap_tensor_subclasses"
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, int})


class Known(Protocol):
    """What torch knows of an input since it was traced."""

    arg_count: int
    """How many inputs of the inner program stand for it: its pieces, and its sizes that are open."""
    outer_size: Sequence[object]
    outer_stride: Sequence[object]
    """None where it is open."""


class TakeApart(Protocol):
    """Torch's function for it."""

    def __call__(
        self, inputs: Sequence[object], *, append_symints: bool, subclass_metas: Sequence[Known] | None = None
    ) -> list[object]:
        """What the inputs are made of, one after the other."""


def take_apart_at_once(wrappers: ModuleType) -> None:
    """Lets torch take sharded tensors apart whose sizes are settled without its loops; `wrappers` is where it runs them."""
    loops = getattr(wrappers, _LOOPS, None)
    if loops is not None:
        vars(wrappers)[_LOOPS] = _at_once(loops)


def _at_once(loops: TakeApart) -> TakeApart:
    def apart(
        inputs: Sequence[object], *, append_symints: bool, subclass_metas: Sequence[Known] | None = None
    ) -> list[object]:
        found: list[object] = []
        for at, x in enumerate(inputs):
            if type(x) in _PLAIN:
                found.append(x)
                continue
            known = None if subclass_metas is None else subclass_metas[at]
            if type(x) is ShardedTensor.final:
                value: Value = x._value
                pieces = value.pieces if value.flat is not None and value.total is None else ()
                if len(pieces) == 1 and type(pieces[0]) is torch.Tensor and (known is None or known.arg_count == 1):
                    found.append(pieces[0])  # as parameters are
                    continue
            found += _taken(x, known) or loops(
                [x], append_symints=append_symints, subclass_metas=None if known is None else [known]
            )
        return found

    return apart


def _taken(x: object, known: Known | None) -> Sequence[object]:
    """The pieces of a tensor, if these are plain and all that torch needs of it: it has no open sizes. Otherwise none."""
    if not isinstance(x, ShardedTensor):
        return ()
    value = x._value
    names = x.__tensor_flatten__()[0] if value.flat is None else value.flat[0]
    if known is not None and known.arg_count != len(names):
        return ()
    is_held = value.flat is not None and value.total is None
    pieces = value.pieces if is_held else [getattr(x, name) for name in names]
    for piece in pieces:
        if type(piece) is not torch.Tensor:
            return ()
    return pieces


def read_strides_behind_sizes(kind: type[Known]) -> None:
    """Lets torch read open strides of a result behind its open sizes, where they are; `kind` is what knows of one."""

    def read(known: Known, all_args: Sequence[object], *, curr_start_idx: int) -> tuple[list[object], list[object]]:
        given = iter(all_args[curr_start_idx:])
        size, stride = (
            [next(given) if n is None else n for n in open_] for open_ in (known.outer_size, known.outer_stride)
        )
        return size, stride

    setattr(kind, "compute_outer_size_and_stride", read)  # noqa: B010 - a protocol has no such method
