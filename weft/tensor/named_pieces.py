"""Pieces by name, as which torch.compile asks a tensor for them."""

from __future__ import annotations

import torch

from ..caches import cached
from ..engine.value import Value

__all__ = ["TOTAL", "NamedPieces", "piece_names"]

TOTAL = "_total"
"""The name of the whole value of a pending tensor, where that is known: it stands for all pieces then."""

_MOST = 512


def _piece(at: int) -> property:
    return property(lambda x: x._value.pieces[at], _leave)


def _leave(x: NamedPieces, piece: torch.Tensor) -> None:
    """Nothing: torch takes a piece of a gradient with other strides, and says so; the tensor, which is the user's, keeps its own."""


def _total(x: NamedPieces) -> torch.Tensor:
    total = x._value.total
    assert total is not None
    return total.value


class NamedPieces:
    """What has pieces, each under a name.

    Properties, and no `__getattr__`: torch asks a tensor for many names that it does not have, before each run of a compiled
    program, and would call that for all of them.
    """

    _value: Value

    vars().update({f"_piece{i}": _piece(i) for i in range(_MOST)}, **{TOTAL: property(_total)})


@cached(_MOST)
def piece_names(count: int) -> list[str]:
    """The names of so many pieces; nobody changes the list.

    >>> piece_names(2)
    ['_piece0', '_piece1']
    """
    if count > _MOST:
        raise NotImplementedError(
            f"torch.compile takes tensors of at most {_MOST} pieces in a process, but one here has {count}: "
            "compile on a smaller mesh, or under torchrun with fewer devices in each process"
        )
    return [f"_piece{i}" for i in range(count)]
